"""Means of paired scores whose doubt comes from two sides: the seeds, and the databases that were asked about.

Every verdict rests on `crossed_mean`. Scores are rows of seed, database, task and value; the questions of one
database are alike and so are all scores of one seed, so neither questions nor scores are independent.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    import pandas as pd

Unit = Literal["seed", "database", "task"]
CONFIDENCE = 0.95
ROUNDING = 1e-12  # what floats of scores between -1 and 1 may differ by without meaning it


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean with its doubt.

    Attributes:
        mean: The estimate.
        se: Its standard error; 0 only where all values are equal. Then `low` and `high` hold a share of exceptions
            that may have stayed unseen, and p values are `no_exception_p`.
        df: Degrees of freedom of the t distribution that the interval uses.
        low, high: The 95 % interval.
        seeds, databases, tasks: Distinct ones behind the estimate.
        scores: Rows behind the estimate.
        unit: What was counted as independent: `seed` (and databases), `database`, or `task`.
    """

    mean: float
    se: float
    df: float
    low: float
    high: float
    seeds: int
    databases: int
    tasks: int
    scores: int
    unit: Unit

    def p_difference(self) -> float:
        """Two-sided p value of "the mean is 0" (t test)."""
        from scipy import stats

        if self.se == 0:
            return 1.0 if self.mean == 0 else no_exception_p(abs(self.mean), self.tasks)
        return float(2 * stats.t.sf(abs(self.mean) / self.se, self.df))

    def p_equivalence(self, margin: float) -> float:
        """p value of "the mean lies outside (-margin, margin)": two one-sided t tests.

        Source: Schuirmann 1987, J. Pharmacokinet. Biopharm. 15, 657-680. Where all values are equal, the
        chance of seeing no differing question among all if a share of `margin` differed.
        """
        from scipy import stats

        if self.se == 0:
            return no_exception_p(margin, self.tasks) if abs(self.mean) < margin else 1.0
        above = stats.t.sf((self.mean + margin) / self.se, self.df)
        below = stats.t.cdf((self.mean - margin) / self.se, self.df)
        return float(max(above, below))

    def detectable(self, power: float = 0.8, alpha: float = 0.05) -> float | None:
        """The smallest true difference that a repetition would find with this power; None if none is known."""
        if self.se == 0 or not math.isfinite(self.df) or self.df < 1:
            return None
        return detectable_effect(self.se, self.df, power, alpha)


def crossed_mean(rows: pd.DataFrame) -> Estimate | None:
    """The mean of `value` with an interval that holds for new seeds and new databases.

    With several seeds and databases the variance is clustered both ways: by seed, plus by database, minus
    by both together, and never below the larger of the first two. With one seed it is clustered by database,
    with one database by question.

    Means of few clusters may coincide while answers differ: then this is 0, which is luck and no certainty. The
    variance over questions stands in, or over single scores if that is larger: neither seeds nor databases can make
    the true one smaller. Degrees of freedom are those of the fewest clusters, at least 1.

    Source: Cameron, Gelbach and Miller 2011, J. Bus. Econ. Stat. 29, 238-249, on cluster variances of
    statsmodels; degrees of freedom of Satterthwaite 1946, Biometrics Bull. 2, 110-114.

    Args:
        rows: Columns `seed`, `db_id`, `task_id`, `value`; values are never null.

    Returns:
        None where there are no rows.
    """
    if rows.empty:
        return None
    import numpy as np

    value = rows["value"].to_numpy(float)
    seeds, databases, tasks = (rows[name].nunique() for name in ("seed", "db_id", "task_id"))
    mean = float(value.mean())
    unit: Unit
    variance: float
    df: float
    if seeds > 1:
        unit = "seed"
        by_seed = cluster_variance(value, rows["seed"])
        if databases > 1:
            by_database = cluster_variance(value, rows["db_id"])
            both = cluster_variance(value, rows["seed"].astype(str) + "\0" + rows["db_id"].astype(str))
            variance = max(by_seed + by_database - both, by_seed, by_database)
            df = crossed_df(variance, by_seed, by_database, both, seeds, databases)
        else:
            variance, df = by_seed, seeds - 1.0
    elif databases > 1:
        unit, variance, df = "database", cluster_variance(value, rows["db_id"]), databases - 1.0
    else:
        unit, variance, df = "task", cluster_variance(value, rows["task_id"]), tasks - 1.0
    se = 0.0
    if np.ptp(value) > ROUNDING:
        if math.isnan(variance) or variance < ROUNDING**2:
            # Satterthwaite's df of variances that are rounding would be rounding too.
            fewest = min((count for count in (seeds, databases) if count > 1), default=tasks) - 1.0
            variance, df = _least_variance(value, rows["task_id"]), max(fewest, 1.0)
        se = math.sqrt(variance)
    low, high = _interval(mean, se, df, tasks)
    return Estimate(mean, se, df, low, high, seeds, databases, tasks, len(rows), unit)


def cluster_variance(value: object, groups: object) -> float:
    """Variance of a mean, robust to dependence inside groups, with the small-sample factor G/(G-1).

    Source: Liang and Zeger 1986, Biometrika 73, 13-22; the intercept of statsmodels' OLS with
    `cov_type="cluster"`.
    """
    import numpy as np
    import pandas as pd
    from statsmodels.regression.linear_model import OLS

    codes = pd.factorize(pd.Series(groups))[0]
    values = np.asarray(value, float)
    if len(values) < 2 or codes.max() < 1:
        return math.nan
    model = OLS(values, np.ones((len(values), 1)))
    fit = model.fit(cov_type="cluster", cov_kwds={"groups": codes, "use_correction": True, "df_correction": True})
    return float(np.atleast_2d(fit.cov_params())[0, 0])


def _least_variance(value: object, tasks: object) -> float:
    """Variance of a mean if nothing but questions, or single scores, varied: the larger of the two."""
    import numpy as np

    scores = np.asarray(value, float)
    by_task = cluster_variance(scores, tasks)
    by_score = float(scores.var(ddof=1)) / len(scores)
    return by_score if math.isnan(by_task) else max(by_task, by_score)


def accuracy(rows: pd.DataFrame) -> Estimate | None:
    """`crossed_mean` of scores between 0 and 1, its interval cut there.

    Where all scores are equal the clustered variance says nothing: Wilson's interval over questions is given.
    """
    found = crossed_mean(rows)
    if found is None:
        return None
    low, high = found.low, found.high
    if found.se == 0 and found.mean in (0.0, 1.0):
        from statsmodels.stats.proportion import proportion_confint

        low, high = proportion_confint(round(found.mean * found.tasks), found.tasks, 1 - CONFIDENCE, method="wilson")
    top = max(1.0, float(rows["value"].max()))
    return replace(found, low=max(0.0, float(low)), high=min(top, float(high)))


def no_exception_p(share: float, count: int) -> float:
    """The chance that none of `count` questions is an exception when a share of them would be."""
    return float((1 - min(share, 1.0)) ** count)


def detectable_effect(se: float, df: float, power: float = 0.8, alpha: float = 0.05) -> float:
    """The true difference that a t test with this standard error finds with the given power.

    Source: Cohen 1988, Statistical Power Analysis, chapter 2, by statsmodels' `TTestPower`, searched around
    the approximation of Bloom 1995, Evaluation Review 19, 547-556: the sum of two t quantiles.
    """
    from scipy import stats
    from scipy.optimize import brentq
    from statsmodels.stats.power import TTestPower

    solver, root = TTestPower(), math.sqrt(df + 1)
    start = float(stats.t.ppf(1 - alpha / 2, df) + stats.t.ppf(power, df))

    def lacking(errors: float) -> float:
        found = float(solver.power(errors / root, nobs=df + 1, alpha=alpha, df=df))
        return (1.0 if math.isnan(found) else found) - power  # far out, the noncentral t is beyond its numerics

    if lacking(start / 2) >= 0 or lacking(start * 2) <= 0:
        return start * se
    return float(brentq(lacking, start / 2, start * 2)) * se


def crossed_df(variance: float, by_seed: float, by_database: float, both: float, seeds: int, databases: int) -> float:
    """Satterthwaite's degrees of freedom, never fewer than the smaller count of clusters allows."""
    fewest = min(seeds, databases) - 1.0
    if variance == by_seed or variance <= 0:
        return max(fewest, seeds - 1.0) if variance > 0 else fewest
    doubt = by_seed**2 / (seeds - 1) + by_database**2 / (databases - 1) + both**2 / ((seeds - 1) * (databases - 1))
    return max(fewest, variance**2 / doubt)


def _interval(mean: float, se: float, df: float, tasks: int) -> tuple[float, float]:
    from scipy import stats

    none_seen = 1 - (1 - CONFIDENCE) ** (1 / max(tasks, 1))  # the largest share that could have stayed unseen
    half = se * float(stats.t.ppf(0.5 + CONFIDENCE / 2, df)) if se else none_seen
    return mean - half, mean + half

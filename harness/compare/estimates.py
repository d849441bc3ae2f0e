"""Means of paired scores with uncertainty from two sources: seeds, and clusters of questions.

Every verdict rests on `crossed_mean`. Scores are rows of seed, cluster, task and value. Questions
of one cluster depend on each other and so do all scores of one seed: neither questions nor scores
are independent.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, cast

from harness.compare.keys import EstimateData, Unit
from harness.compare.variances import cluster_variance, codes, least_variance, share_df, ways_of

if TYPE_CHECKING:
    import polars as pl

CONFIDENCE = 0.95
ROUNDING = 1e-12  # differences of floats between -1 and 1 below this are rounding errors
MIN_SEEDS = 8
"""Fewer trainings never show equivalence, however alike they are."""
COLLAPSE = 0.25
"""Largest assumed loss of a training worse than all observed seeds, relative to the other arm;
larger if a seed lost more. A share of the range of rewards.
"""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean with its uncertainty.

    Attributes:
        mean: The estimate.
        se: Its standard error; 0 only if all values are equal. Then `low` and `high` cover
            unobserved values: of trainings with several seeds, of questions with one seed.
        df: Degrees of freedom of the interval's t distribution: between those of seeds and of
            clusters.
        low, high: The 95 % interval.
        seeds, clusters, tasks: Distinct ones behind the estimate; a cluster is a group of dependent
        questions.
        equal_clusters: Number of clusters of equal size with the same information; less than
            `clusters` if some are large.
        scores: Rows behind the estimate.
        unit: The unit counted as independent: `seed` (and clusters), `cluster`, or `task`.
        by_seed: The mean of every seed, in their order.
        ways: Ways to split the variance between seeds and clusters: each a list of variances with
            their degrees of freedom. The one with the largest uncertainty counts.
        width: Largest difference of two scores; 1 for right and wrong.
    """

    mean: float
    se: float
    df: float
    low: float
    high: float
    seeds: int
    clusters: int
    equal_clusters: float
    tasks: int
    scores: int
    unit: Unit
    by_seed: tuple[float, ...]
    ways: tuple[tuple[tuple[float, float], ...], ...]
    width: float = 1.0

    def data(self) -> EstimateData:
        """Return the entry of a comparison document."""
        return cast(
            EstimateData,
            {key: value for key, value in asdict(self).items() if key not in ("ways", "width")},
        )

    def doubt(self, error: float) -> float:
        """Return half the length of an interval with this error on each side.

        Every part of the variance has the t quantile of its own degrees of freedom. The error is
        exact if a single part makes up the variance, and smaller if several do; t quantiles with
        degrees of freedom estimated from the data (Satterthwaite) promise too much when an
        important part is small by chance.

        Source: Howe 1974, J. Am. Stat. Assoc. 69, 789-794.
        """
        squares = (
            sum(part * t_quantile(1 - error, df) ** 2 for part, df in way) for way in self.ways
        )
        return math.sqrt(max(squares))

    def error(self, distance: float) -> float:
        """Return the one-sided error at which the mean lies this far off: `doubt` inverted."""
        ends = [t_above(distance / self.se, df) for way in self.ways for _, df in way]
        return root(lambda error: distance - self.doubt(error), min(ends), max(ends))

    def df_at(self, error: float) -> float:
        """Return the degrees of freedom of the t quantile in `doubt`."""
        known = [df for way in self.ways for _, df in way]
        quantile = self.doubt(error) / self.se
        return root(lambda df: quantile - t_quantile(1 - error, df), min(known), max(known))

    def p_difference(self) -> float:
        """Return the two-sided p value of "the mean is 0" (t test)."""
        if self.se == 0:
            if (
                self.seeds > 1
            ):  # identical seeds: the sign test, because a variance of 0 is no certainty
                return 1.0 if self.mean == 0 else 2 * 0.5**self.seeds
            return (
                1.0 if self.mean == 0 else no_exception_p(abs(self.mean) / self.width, self.tasks)
            )
        return 2 * self.error(abs(self.mean))

    def p_equivalence(self, margin: float) -> float:
        """Return the p value of "the mean lies outside (-margin, margin)".

        It is the larger of two p values, each one-sided on both sides. The t tests hold for seeds
        with regular scatter. A collapsed training is rare and far off: without one among the seeds,
        the t test cannot account for it. Seeds are therefore also compared with the worst case:
        `tail_p`.

        Source: Schuirmann 1987, J. Pharmacokinet. Biopharm. 15, 657-680, for the t tests.
        """
        if abs(self.mean) >= margin:
            return 1.0
        if self.seeds == 1 and self.se == 0:
            return no_exception_p(margin / self.width, self.tasks)
        apart = 0.0
        if self.se:
            apart = max(self.error(margin + side * self.mean) for side in (1, -1))
        if self.seeds == 1:
            return apart
        return max(
            apart,
            *(tail_p([side * one for one in self.by_seed], self.worst, margin) for side in (1, -1)),
        )

    @property
    def worst(self) -> float:
        """Return the largest assumed deviation of an unobserved training, in either direction."""
        return max(COLLAPSE * self.width, *map(abs, self.by_seed))

    def with_collapses(self) -> tuple[float, float]:
        """Return the 95 % interval of `low` and `high` if unseen trainings deviate by `worst`."""
        ends = [
            _tail_end(tuple(side * one for one in self.by_seed), self.worst) for side in (1, -1)
        ]
        return min(self.low, -ends[0]), max(self.high, ends[1])

    def detectable(self, power: float = 0.8, alpha: float = 0.05) -> float | None:
        """Return the smallest true difference that a repetition would detect, None if unknown."""
        if self.se == 0:
            return None
        return detectable_effect(self.se, self.df_at(alpha / 2), power, alpha)


def crossed_mean(rows: pl.DataFrame, width: float = 1.0) -> Estimate | None:
    """Return the mean of `value` with an interval that holds for new seeds and new clusters.

    With several seeds and clusters the variance is clustered both ways: by seed, plus by cluster,
    minus by both together, and never below the larger of the first two. With one seed it is
    clustered by cluster, with one cluster by question. Effects of seeds and clusters have the
    degrees of freedom of each; their joint effect is assigned to the one that leaves more
    uncertainty (`Estimate.doubt`).

    Means of few clusters may coincide although answers differ: then this variance is 0 by chance.
    The variance over questions replaces it, or that over single scores if that is larger: neither
    seeds nor clusters can make the true one smaller. Degrees of freedom are those of the fewest
    clusters, at least 1.

    Source: Cameron, Gelbach and Miller 2011, J. Bus. Econ. Stat. 29, 238-249, on cluster variances
    of Bell and McCaffrey.

    Args:
        rows: Columns `seed`, `cluster`, `task_id`, `value`; values are never null.
        width: Largest difference of two scores; the unit of unobserved deviations.

    Returns:
        None without rows.
    """
    if rows.is_empty():
        return None
    import numpy as np

    value = rows["value"].cast(float).to_numpy()
    seed, cluster, task = (codes(rows[name]) for name in ("seed", "cluster", "task_id"))
    seeds, clusters, tasks = (int(codes.max()) + 1 for codes in (seed, cluster, task))
    mean = float(value.mean())
    by_cluster, of_clusters = cluster_variance(value, cluster)
    cluster_df = share_df(of_clusters) if clusters > 1 else 0.0
    unit: Unit
    if seeds > 1:
        unit = "seed"
        by_seed, of_seeds = cluster_variance(value, seed)
        variance, ways = by_seed, (((by_seed, share_df(of_seeds)),),)
        if clusters > 1:
            both, _ = cluster_variance(value, seed * clusters + cluster)
            variance = max(by_seed + by_cluster - both, by_seed, by_cluster)
            ways = ways_of(by_seed, by_cluster, both, share_df(of_seeds), cluster_df)
    elif clusters > 1:
        unit = "cluster"
        variance, ways = by_cluster, (((by_cluster, cluster_df),),)
    else:
        unit = "task"
        variance, of_tasks = cluster_variance(value, task)
        ways = (((variance, share_df(of_tasks) if tasks > 1 else 1.0),),)
    se = 0.0
    if np.ptp(value) > ROUNDING:
        if math.isnan(variance) or variance < ROUNDING**2:
            fewest = min((count for count in (seeds, clusters) if count > 1), default=tasks) - 1.0
            variance = least_variance(value, task)
            ways = (((variance, max(fewest, 1.0)),),)
        se = math.sqrt(variance)
    means = tuple(map(float, (np.bincount(seed, value) / np.bincount(seed)).tolist()))
    unseen = (mean, se, min(df for way in ways for _, df in way), mean, mean)
    return _whole(
        Estimate(
            *unseen, seeds, clusters, cluster_df + 1, tasks, len(rows), unit, means, ways, width
        )
    )


def accuracy(rows: pl.DataFrame, span: tuple[float, float] = (0.0, 1.0)) -> Estimate | None:
    """Return `crossed_mean` of scores with Wilson's interval, for any scores in the span.

    Wilson's interval uses the number of independent questions with the same standard error, and the
    t quantile. It therefore accounts for clusters, contains the mean and stays in the span. If all
    scores are equal, their variance shows nothing, and each question counts as one. Scores outside
    of the span keep the t interval.

    Source: Wilson 1927, J. Am. Stat. Assoc. 22, 209-212; Franco et al. 2019, J. Surv. Stat.
    Methodol. 7, 334-364, for clustered samples.

    Args:
        span: The lowest and the highest possible score.
    """
    (least, most), width = span, span[1] - span[0]
    found = crossed_mean(rows, width)
    if found is None or not rows["value"].is_between(least, most).all():
        return found
    mean, se, count, df = (
        (found.mean - least) / width,
        found.se / width,
        float(found.tasks),
        math.inf,
    )
    if se > 0:
        count, df = mean * (1 - mean) / se**2, found.df
    squared = t_quantile(0.5 + CONFIDENCE / 2, df) ** 2
    middle = (mean + squared / (2 * count)) / (1 + squared / count)
    half = math.sqrt(squared * (mean * (1 - mean) / count + squared / (4 * count**2))) / (
        1 + squared / count
    )
    low, high = max(0.0, min(mean, middle - half)), min(1.0, max(mean, middle + half))
    return replace(found, low=least + width * low, high=least + width * high)


def tail_p(values: Sequence[float], worst: float, margin: float) -> float:
    """Return the p value of "the mean of trainings is at most -margin", given the worst case.

    An unobserved training may lie at -`worst`. The p value is the probability that a randomly
    weighted mean of the observed values and one value at -`worst` is so low, with weights uniform
    over all that sum to 1. With k of n values at -worst and the others at 0 this is the exact
    binomial test of "the share of collapses is margin / worst"; with none, (1 - margin / worst) **
    n. It assumes no distribution.

    Source: Gaffke 2005, Math. Methods Stat. 14, 451-467. The density of such a mean is a B-spline
    with the values as knots, so the probability follows from the recurrence of de Boor 1972, J.
    Approx. Theory 6, 50-62.
    """
    terms = sorted(one + margin for one in (*values, -worst))
    if terms[0] >= 0:
        return 0.0
    chance = [
        float(term <= 0) for term in terms
    ]  # single values, then all groups of two neighbours, three, ...
    for more in range(1, len(terms)):
        chance = [
            (high * upper - low * lower) / (high - low) if low <= 0 < high else lower
            for low, high, lower, upper in zip(
                terms, terms[more:], chance, chance[1:], strict=False
            )
        ]
    return chance[0]


@cache
def _tail_end(values: tuple[float, ...], worst: float) -> float:
    """Return the margin at which `tail_p` is 2.5 %: the largest shift of the mean below 0."""
    mean, error = sum(values) / len(values), (1 - CONFIDENCE) / 2
    if mean <= -worst + ROUNDING:
        return worst
    return root(lambda margin: error - tail_p(values, worst, margin), -mean, worst)


def root(rising: Callable[[float], float], low: float, high: float) -> float:
    """Return the root of a rising function between `low` and `high`, by bisection to 13 digits."""
    for _ in range(45):
        middle = (low + high) / 2
        low, high = (low, middle) if rising(middle) > 0 else (middle, high)
    return high


def unseen_share(seen: int, trainings: int) -> float:
    """Return the largest share of a kind of trainings seen so many times (95 %, one-sided).

    Source: Clopper and Pearson 1934, Biometrika 26, 404-413; with none seen it is 1 - 0.05 ** (1 /
    trainings).
    """
    from scipy.special import betaincinv

    return 1.0 if seen >= trainings else float(betaincinv(seen + 1, trainings - seen, CONFIDENCE))


def seeds_for_equivalence(margin: float, family: int = 1, alpha: float = 0.05) -> int:
    """Return the fewest seeds with which `family` arms can be shown equivalent at all.

    This is a bound, not a power. With fewer, *equivalent* is impossible even if every difference is
    0 (`Spread.seeds_for_equivalence` returns the number for a given power).

    Args:
        margin: As a share of the range of rewards.
    """
    if margin >= COLLAPSE:
        return MIN_SEEDS
    return max(
        MIN_SEEDS, math.ceil(math.log(alpha / max(family, 1)) / math.log(1 - margin / COLLAPSE))
    )


def t_quantile(share: float, df: float) -> float:
    """Return the quantile of Student's t."""
    from scipy.special import ndtri, stdtrit

    return float(stdtrit(df, share) if math.isfinite(df) else ndtri(share))


def t_above(value: float, df: float) -> float:
    """Return the probability that Student's t is larger than `value`."""
    from scipy.special import ndtr, stdtr

    return float(stdtr(df, -value) if math.isfinite(df) else ndtr(-value))


def no_exception_p(share: float, count: int) -> float:
    """Return the probability that none of `count` questions is an exception.

    Args:
        share: Share of exceptions among all questions.
    """
    return float((1 - min(share, 1.0)) ** count)


def detectable_effect(se: float, df: float, power: float = 0.8, alpha: float = 0.05) -> float:
    """Return the true difference that a t test with this standard error detects with this power.

    It is 0 if `alpha` is more than the power.

    Source: Cohen 1988, Statistical Power Analysis, chapter 2, by the noncentral t distribution.
    """
    from scipy.special import nctdtr

    beyond = t_quantile(1 - alpha / 2, df)

    def lacking(errors: float) -> float:
        lower = float(nctdtr(df, errors, -beyond))
        return 1 - float(nctdtr(df, errors, beyond)) + (0.0 if math.isnan(lower) else lower) - power

    enough = beyond  # above is nan if the tail is too small for scipy: treat it as 0
    while lacking(enough) < 0:
        enough *= 2
    return root(lacking, 0.0, enough) * se


def _whole(found: Estimate) -> Estimate:
    """Return an estimate completed by its degrees of freedom and interval."""
    if found.se:
        found = replace(found, df=found.df_at((1 - CONFIDENCE) / 2))
    low, high = _interval(found)
    return replace(found, low=low, high=high)


def _interval(found: Estimate) -> tuple[float, float]:
    """Return the t interval; if all values are equal, bounds for unobserved values."""
    if found.se:
        half = found.doubt((1 - CONFIDENCE) / 2)
        return found.mean - half, found.mean + half
    if found.seeds > 1:
        return found.with_collapses()
    none_seen = found.width * (1 - (1 - CONFIDENCE) ** (1 / found.tasks))
    return found.mean - none_seen, found.mean + none_seen

"""Means of paired scores with uncertainty from two sources: seeds, and clusters of questions.

Every verdict rests on `crossed_mean`. Scores are rows of seed, cluster, task and value. Questions
of one cluster depend on each other and so do all scores of one seed: neither questions nor scores
are independent.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING, cast

from harness.compare.distributions import detectable_effect, no_exception_p, t_above, t_quantile
from harness.compare.distributions import root as root
from harness.compare.keys import EstimateData, Unit
from harness.compare.variances import cluster_variance, codes, least_variance, share_df, ways_of

if TYPE_CHECKING:
    import polars as pl

CONFIDENCE = 0.95
ROUNDING = 1e-12
"""Smaller differences of floats between -1 and 1 are rounding errors."""
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
        entry = asdict(self)
        del entry["ways"], entry["width"]
        return cast(EstimateData, entry)

    def doubt(self, error: float) -> float:
        """Return half the length of an interval with this error on each side.

        Every part of the variance has the t quantile of its own degrees of freedom. The error is
        exact if a single part makes up the variance, and smaller if several do; t quantiles with
        degrees of freedom estimated from the data (Satterthwaite) promise too much when an
        important part is small by chance.

        Source: Howe 1974, J. Am. Stat. Assoc. 69, 789-794.
        """
        # Which of seeds and clusters has the joint effect is unknown. The way with the largest
        # result counts, so that an error is never understated.
        squares = []
        for way in self.ways:
            terms = []
            for part, df in way:
                terms.append(part * t_quantile(1 - error, df) ** 2)
            squares.append(sum(terms))
        return math.sqrt(max(squares))

    def all_df(self) -> list[float]:
        """Return the degrees of freedom of every part in all ways."""
        every_df: list[float] = []
        for way in self.ways:
            for _, df in way:
                every_df.append(df)
        return every_df

    def error(self, distance: float) -> float:
        """Return the one-sided error at which the mean lies this far off: `doubt` inverted."""
        # The result lies between those of the strictest and the most lenient part.
        ends = [t_above(distance / self.se, df) for df in self.all_df()]
        return root(lambda error: distance - self.doubt(error), min(ends), max(ends))

    def df_at(self, error: float) -> float:
        """Return the degrees of freedom of the t quantile in `doubt`."""
        known = self.all_df()
        quantile = self.doubt(error) / self.se
        return root(lambda df: quantile - t_quantile(1 - error, df), min(known), max(known))

    def p_difference(self) -> float:
        """Return the two-sided p value of "the mean is 0" (t test)."""
        if self.se:
            return 2 * self.error(abs(self.mean))
        if self.mean == 0:
            return 1.0
        # A variance of 0 is no certainty: few equal values may be chance. Equal seeds get the sign
        # test. Of one seed, unseen questions may differ by the full width the other way; if all
        # seen ones have the full difference, this is the sign test too.
        if self.seeds > 1:
            return min(1.0, 2 * 0.5**self.independent)
        exceptions = abs(self.mean) / (self.width + abs(self.mean))
        return min(1.0, 2 * no_exception_p(exceptions, self.independent))

    @property
    def independent(self) -> int:
        """Return the number of independent units: the fewer of seeds and clusters, or questions."""
        return min((n for n in (self.seeds, self.clusters) if n > 1), default=self.tasks)

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
            apart = max(self.error(margin + self.mean), self.error(margin - self.mean))
        if self.seeds == 1:
            return apart
        above, below = self._both_sides()
        return max(apart, tail_p(above, self.worst, margin), tail_p(below, self.worst, margin))

    def _both_sides(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Return the means of seeds, and the same with the other sign.

        An unobserved training may be worse or better, and `tail_p` looks at one side.
        """
        return self.by_seed, tuple(-value for value in self.by_seed)

    @property
    def worst(self) -> float:
        """Return the largest assumed deviation of an unobserved training, in either direction."""
        return max(COLLAPSE * self.width, *map(abs, self.by_seed))

    def within(self, limit: float) -> Estimate:
        """Return the estimate with an interval that stays between `-limit` and `limit`."""
        return replace(self, low=max(self.low, -limit), high=min(self.high, limit))

    def with_collapses(self) -> tuple[float, float]:
        """Return the 95 % interval of `low` and `high` if unseen trainings deviate by `worst`."""
        above, below = self._both_sides()
        low, high = -_tail_end(above, self.worst), _tail_end(below, self.worst)
        return min(self.low, low), max(self.high, high)

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

    value = rows["value"].cast(float).to_numpy(writable=True)
    # 0.1 + 0.2 - 0.3 is not 0. A difference that rounding made would be one that no seed lacks.
    value[np.abs(value) <= ROUNDING] = 0.0
    seed, cluster, task = codes(rows["seed"]), codes(rows["cluster"]), codes(rows["task_id"])
    seeds, clusters, tasks = int(seed.max()) + 1, int(cluster.max()) + 1, int(task.max()) + 1
    mean = float(value.mean())
    by_cluster, of_clusters = cluster_variance(value, cluster)
    cluster_df = share_df(of_clusters) if clusters > 1 else 0.0
    unit: Unit
    if seeds > 1:
        unit = "seed"
        by_seed, of_seeds = cluster_variance(value, seed)
        variance, ways = by_seed, (((by_seed, share_df(of_seeds)),),)
        if clusters > 1:
            # Both sums contain what seed and cluster share, so it is subtracted once. By chance
            # that may leave less than one side alone has, which cannot be.
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
            several = [count for count in (seeds, clusters) if count > 1]
            fewest = min(several, default=tasks) - 1.0
            variance = least_variance(value, task)
            ways = (((variance, max(fewest, 1.0)),),)
        se = math.sqrt(variance)
    means = np.bincount(seed, value) / np.bincount(seed)
    estimate = Estimate(
        mean=mean,
        se=se,
        df=0.0,
        low=mean,
        high=mean,
        seeds=seeds,
        clusters=clusters,
        equal_clusters=cluster_df + 1,
        tasks=tasks,
        scores=len(rows),
        unit=unit,
        by_seed=tuple(map(float, means.tolist())),
        ways=ways,
        width=width,
    )
    return _whole(estimate, bounded=bool(np.abs(value).max() <= width))


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
    least, most = span
    width = most - least
    estimate = crossed_mean(rows, width)
    if estimate is None or not rows["value"].is_between(least, most).all():
        return estimate
    mean, se = (estimate.mean - least) / width, estimate.se / width
    count, df = float(estimate.tasks), math.inf
    # Dependent questions tell less than their number. The number of independent ones with the same
    # standard error brings that into Wilson's formula.
    if se > 0:
        count, df = mean * (1 - mean) / se**2, estimate.df
    squared = t_quantile(0.5 + CONFIDENCE / 2, df) ** 2
    middle = (mean + squared / (2 * count)) / (1 + squared / count)
    half = math.sqrt(squared * (mean * (1 - mean) / count + squared / (4 * count**2))) / (
        1 + squared / count
    )
    low, high = max(0.0, min(mean, middle - half)), min(1.0, max(mean, middle + half))
    return replace(estimate, low=least + width * low, high=least + width * high)


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
    terms = sorted(value + margin for value in (*values, -worst))
    if terms[0] >= 0:
        return 0.0
    # The chance of every single value, then of all groups of two neighbours, three, ...: each
    # round joins two overlapping groups. Sums over subsets would grow exponentially with seeds.
    chance = [float(term <= 0) for term in terms]
    for size in range(1, len(terms)):
        joined = []
        for place, (lower, upper) in enumerate(pairwise(chance)):
            low, high = terms[place], terms[place + size]
            # A group with all its values on one side is certain, and both its parts agree on it.
            if low <= 0 < high:
                joined.append((high * upper - low * lower) / (high - low))
            else:
                joined.append(lower)
        chance = joined
    return chance[0]


@cache
def _tail_end(values: tuple[float, ...], worst: float) -> float:
    """Return the margin at which `tail_p` is 2.5 %: the largest shift of the mean below 0."""
    mean, error = sum(values) / len(values), (1 - CONFIDENCE) / 2
    if mean <= -worst + ROUNDING:
        return worst
    return root(lambda margin: error - tail_p(values, worst, margin), -mean, worst)


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
    # With all differences 0, `tail_p` is (1 - margin / worst) ** n. Holm's first step divides alpha
    # by the number of arms.
    strictest = alpha / max(family, 1)
    needed = math.log(strictest) / math.log(1 - margin / COLLAPSE)
    return max(MIN_SEEDS, math.ceil(needed))


def _whole(estimate: Estimate, bounded: bool) -> Estimate:
    """Return an estimate completed by its degrees of freedom and its interval, cut if `bounded`."""
    df = estimate.df_at((1 - CONFIDENCE) / 2) if estimate.se else min(estimate.all_df())
    low, high = _interval(estimate)
    whole = replace(estimate, df=df, low=low, high=high)
    return whole.within(estimate.width) if bounded else whole


def _interval(estimate: Estimate) -> tuple[float, float]:
    """Return the t interval; if all values are equal, bounds for unobserved values."""
    if estimate.se:
        half = estimate.doubt((1 - CONFIDENCE) / 2)
        return estimate.mean - half, estimate.mean + half
    # An interval without length would claim that no other seed or question can differ.
    if estimate.seeds > 1:
        return estimate.with_collapses()
    if estimate.mean == 0:
        none_seen = estimate.width * (1 - (1 - CONFIDENCE) ** (1 / estimate.tasks))
        return -none_seen, none_seen
    # The inverted test of `p_difference`: unseen questions may have any difference in the range.
    share = 1 - ((1 - CONFIDENCE) / 2) ** (1 / estimate.independent)
    below, above = estimate.width + estimate.mean, estimate.width - estimate.mean
    return estimate.mean - share * below, estimate.mean + share * above

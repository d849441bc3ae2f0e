"""Variance components of paired differences, and the resulting power of a comparison."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from harness.compare.distributions import detectable_effect, root, t_quantile
from harness.compare.estimates import COLLAPSE, MIN_SEEDS, Estimate
from harness.compare.variances import share_df, square_weights, ways_of

if TYPE_CHECKING:
    import numpy as np

MOST_SEEDS = 200
"""Largest number of seeds tried for a power of equivalence."""
DRAWN = 2_000_000
"""Simulated means of a cluster and seed for one answer."""


@dataclass(frozen=True, slots=True)
class Variances:
    """Variance components of paired differences.

    Attributes:
        seed: Between seeds: the effect of another training.
        cluster: Between clusters: the effect of other clusters.
        question: Between questions of a cluster, equal for every seed; 0 with one cluster, where
            the test leaves it out.
        cell: Between seeds of one cluster, beyond both effects alone.
        score: Between single scores.
        sizes: Questions of every cluster.
        seeds: Number of seeds behind the estimate.
        source: Name of the analysed differences.
    """

    seed: float
    cluster: float
    question: float
    cell: float
    score: float
    sizes: tuple[int, ...]
    seeds: int
    source: str

    @property
    def questions(self) -> int:
        """Number of questions in all clusters."""
        return sum(self.sizes)

    def detectable(self, seeds: int, sizes: Sequence[int], power: float, alpha: float) -> float:
        """Return the smallest true difference that the verdict's test detects with this power.

        The test estimates its variance, so trainings are drawn from these components (normal) and
        tested alike. At least two seeds are needed.

        Args:
            sizes: Questions of every cluster.
        """
        import numpy as np
        from scipy.special import ndtr

        # Large clusters add more to the variance than small ones: `spread` is one over the number
        # of equal clusters with the same variance.
        share = np.array(sizes, float) / sum(sizes)
        spread = float((share**2).sum())
        both = self.cell * spread / seeds + self.score / (seeds * sum(sizes))
        by_seed = self.seed / seeds + both
        if len(sizes) == 1:
            return detectable_effect(math.sqrt(by_seed), seeds - 1.0, power, alpha)
        by_cluster = self.cluster * spread + self.question / sum(sizes) + both
        error = math.sqrt(by_seed + by_cluster - both)
        # The test does not know these components. It estimates them from every experiment,
        # so its quantile varies between experiments. There is no closed form for that.
        draws = int(np.clip(DRAWN // (seeds * len(sizes)), 50, 2000))
        normal, size = np.random.default_rng(0).normal, np.array(sizes, float)
        means = normal(0, math.sqrt(self.seed), (draws, seeds, 1)) + normal(
            0, np.sqrt(self.cluster + self.question / size), (draws, 1, len(size))
        )
        means += normal(0, np.sqrt(self.cell + self.score / size), (draws, seeds, len(size)))
        parts = (means - (means * share).sum(2).mean(1)[:, None, None]) * share / seeds
        by_seeds = (parts.sum(2) ** 2).sum(1) * seeds / (seeds - 1)
        by_clusters = (parts.sum(1) ** 2 * square_weights(share)).sum(1)
        by_both = (parts**2 * square_weights(share, seeds)).sum((1, 2))
        ways = ways_of(by_seeds, by_clusters, by_both, seeds - 1.0, share_df(share))
        needed = np.sqrt(_largest_square(ways, 1 - alpha / 2)) / error

        def lacking(effect: float) -> float:
            return float((ndtr(effect - needed) + ndtr(-needed - effect)).mean()) - power

        return error * root(lacking, 0.0, float(needed.max()) + 10.0)

    def spread(self, sizes: Sequence[int], width: float = 1.0) -> Spread:
        """Return the variances of means over questions in clusters of these sizes.

        Args:
            sizes: Questions of every cluster.
            width: The range of rewards; the result is in shares of it.
        """
        import numpy as np

        share = np.array(sizes, float) / sum(sizes)
        concentration = float((share**2).sum())
        cell = self.cell * concentration + self.score / sum(sizes)
        if len(sizes) == 1:
            return Spread((self.seed + cell) / width**2, 0.0, 0.0, math.inf)
        common = self.cluster * concentration + self.question / sum(sizes)
        return Spread(self.seed / width**2, cell / width**2, common / width**2, share_df(share))


@dataclass(frozen=True, slots=True)
class Spread:
    """Variances of the mean difference of one seed, as shares of the squared range of rewards.

    Attributes:
        seed: Effect of another training on all clusters alike.
        cell: Effect of another training on single clusters and questions.
        common: Effect of other clusters on all seeds alike.
        cluster_df: Degrees of freedom of the effect of clusters; infinite with one cluster.
    """

    seed: float
    cell: float
    common: float
    cluster_df: float

    @classmethod
    def of(cls, estimate: Estimate) -> Spread:
        """Return the variances behind an estimate of several seeds."""
        times = estimate.seeds / estimate.width**2
        if len(estimate.ways) == 1:
            return cls(estimate.ways[0][0][0] * times, 0.0, 0.0, math.inf)
        (by_seed, _), (common, cluster_df) = estimate.ways[0]
        without_cell, _ = estimate.ways[1][0]
        cell = by_seed - without_cell
        return cls(without_cell * times, cell * times, common / estimate.width**2, cluster_df)

    def equivalence_power(self, seeds: int, margin: float, alpha: float = 0.05) -> float:
        """Return the probability that the verdict's test shows equivalence at no true difference.

        Both one-sided t tests and both tests against unobserved collapses have to reject
        (`Estimate.p_equivalence`). The second has no closed form, so trainings are drawn (normal,
        no collapse) and tested; the draws are the same in every call.

        Args:
            seeds: Trainings of each arm, two or more.
            margin: As a share of the range of rewards.
            alpha: Level for one arm, already corrected for the number of arms.
        """
        import numpy as np

        generator = np.random.default_rng(0)
        draws = int(np.clip(2_000_000 // seeds**2, 500, 4000))
        common = generator.normal(0, math.sqrt(self.common), (draws, 1))
        values = common + generator.normal(0, math.sqrt(self.seed + self.cell), (draws, seeds))
        means = values.mean(1)

        by_seed = values.var(1, ddof=1) / seeds
        both = np.minimum(self.cell / seeds, by_seed)
        by_cluster = both + self.common
        if math.isfinite(self.cluster_df):
            by_cluster = by_cluster * generator.chisquare(self.cluster_df, draws) / self.cluster_df
        ways = ways_of(by_seed, by_cluster, both, seeds - 1.0, self.cluster_df)
        close = margin - np.abs(means) > np.sqrt(_largest_square(ways, 1 - alpha))

        # Only draws that the t tests accept go on to the slower tests against unseen collapses.
        shown = values[close]
        worst = np.maximum(COLLAPSE, np.abs(shown).max(1, initial=0.0))
        for side in (1, -1):
            shown_side = _tail_ps(side * shown, worst, margin) < alpha
            shown, worst = shown[shown_side], worst[shown_side]
        return len(shown) / draws

    def seeds_for_equivalence(
        self, margin: float, family: int = 1, power: float = 0.8, alpha: float = 0.05
    ) -> int | None:
        """Return the fewest seeds with this power of equivalence at no true difference.

        Args:
            margin: As a share of the range of rewards.
            family: Arms that are compared with the baseline; every one is tested at Holm's first
                step.

        Returns:
            None if `MOST_SEEDS` are not enough.
        """
        # Doubling, then halving: the power rises with the seeds, and every try costs a simulation.
        strictest = alpha / max(family, 1)
        low, high = MIN_SEEDS - 1, MIN_SEEDS
        while self.equivalence_power(high, margin, strictest) < power:
            if high == MOST_SEEDS:
                return None
            low, high = high, min(2 * high, MOST_SEEDS)
        while high - low > 1:
            middle = (low + high) // 2
            if self.equivalence_power(middle, margin, strictest) >= power:
                high = middle
            else:
                low = middle
        return high


def _largest_square(ways: Any, share: float) -> np.ndarray:
    """Return the square of `Estimate.doubt` of every draw, by the way with the largest result."""
    import numpy as np

    squares = []
    for way in ways:
        terms = []
        for part, df in way:
            terms.append(part * t_quantile(share, df) ** 2)
        squares.append(sum(terms))
    return np.asarray(np.maximum(*squares))


def _tail_ps(values: np.ndarray, worst: np.ndarray, margin: float) -> np.ndarray:
    """Return `tail_p` of every row of [draws, seeds], each with its own worst training."""
    import numpy as np

    terms = np.sort(np.column_stack([values, -worst]) + margin, axis=1)
    chance = (terms <= 0).astype(float)
    for more in range(1, terms.shape[1]):
        low, high = terms[:, :-more], terms[:, more:]
        lower, upper = chance[:, :-1], chance[:, 1:]
        across = (low <= 0) & (high > 0)
        length = np.where(across, high - low, 1.0)
        chance = np.where(across, (high * upper - low * lower) / length, lower)
    return np.asarray(chance[:, 0])

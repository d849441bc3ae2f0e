"""Variance components of paired differences, and the smallest difference that a comparison finds with them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from harness.compare.estimates import detectable_effect, root, t_quantile
from harness.compare.variances import share_df, square_weights, ways_of

DRAWN = 2_000_000
"""Means of a cluster and seed that are drawn for one answer."""


@dataclass(frozen=True, slots=True)
class Variances:
    """Variance components of paired differences.

    Attributes:
        seed: Between seeds: what another training changes.
        cluster: Between clusters: what other clusters change.
        question: Between questions of a cluster, alike for every seed; 0 with one cluster, where the test leaves it
            out.
        cell: Between seeds of one cluster, beyond what both do alone.
        score: Between single scores.
        sizes: Questions of every cluster.
        seeds: How many the estimate rests on.
        source: Whose differences were looked at.
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
        """Of all clusters together."""
        return sum(self.sizes)

    def detectable(self, seeds: int, sizes: Sequence[int], power: float, alpha: float) -> float:
        """The smallest true difference that the verdict's own test finds with this power; needs two seeds.

        The test estimates its variance, so trainings are drawn from these components (normal) and tested as there.

        Args:
            sizes: Questions of every cluster.
        """
        import numpy as np
        from scipy.special import ndtr

        share = np.array(sizes, float) / sum(sizes)
        spread = float((share**2).sum())
        both = self.cell * spread / seeds + self.score / (seeds * sum(sizes))
        by_seed = self.seed / seeds + both
        if len(sizes) == 1:
            return detectable_effect(math.sqrt(by_seed), seeds - 1.0, power, alpha)
        by_cluster = self.cluster * spread + self.question / sum(sizes) + both
        error = math.sqrt(by_seed + by_cluster - both)
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
        squares = [
            sum(part * t_quantile(1 - alpha / 2, df) ** 2 for part, df in way) for way in ways
        ]
        needed = np.sqrt(np.maximum(*squares)) / error

        def lacking(effect: float) -> float:
            return float((ndtr(effect - needed) + ndtr(-needed - effect)).mean()) - power

        return error * root(lacking, 0.0, float(needed.max()) + 10.0)

"""The statistics beside the verdict: item level, training level, and corrections over a family of comparisons."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd

RESAMPLES = 4000
FEW_CLUSTERS = 20
"""Below this many clusters a percentile bootstrap is too narrow; shown, but no verdict rests on it."""


@dataclass(frozen=True, slots=True)
class McNemar:
    """Questions that one run answered and the other did not, and the exact test of their balance."""

    only_first: int
    only_second: int
    p: float


def mcnemar_exact(first: Sequence[float], second: Sequence[float]) -> McNemar:
    """The exact McNemar test of paired right-or-wrong answers of two checkpoints. Takes questions as independent.

    Source: McNemar 1947, Psychometrika 12, 153-157, in its exact binomial form; statsmodels.

    Args:
        first, second: 1 for right and 0 for wrong, question by question, [questions].
    """
    import numpy as np
    from statsmodels.stats.contingency_tables import mcnemar

    a, b = np.asarray(first) >= 1.0, np.asarray(second) >= 1.0
    table = [[int((a & b).sum()), int((a & ~b).sum())], [int((~a & b).sum()), int((~a & ~b).sum())]]
    return McNemar(table[0][1], table[1][0], float(mcnemar(table, exact=True).pvalue))


def cluster_bootstrap(rows: pd.DataFrame, seed: int = 0, resamples: int = RESAMPLES) -> tuple[float, float] | None:
    """95 % percentile interval of the mean of `value`, whole clusters resampled.

    It holds for these very checkpoints and other clusters: what another training changes is not in it.

    Source: Davison and Hinkley 1997, Bootstrap Methods, section 3.8; scipy's `bootstrap` over clusters.

    Args:
        rows: Columns `cluster` and `value`, for example paired differences.

    Returns:
        None with fewer than two clusters.
    """
    import numpy as np
    from scipy.stats import bootstrap

    grouped = rows.groupby("cluster")["value"]
    sums, counts = grouped.sum().to_numpy(float), grouped.count().to_numpy(float)
    if len(sums) < 2:
        return None
    if np.ptp(sums / counts) == 0:
        return float(sums[0] / counts[0]), float(sums[0] / counts[0])

    def ratio(total: np.ndarray, count: np.ndarray, axis: int = -1) -> Any:
        return total.sum(axis=axis) / count.sum(axis=axis)

    found = bootstrap(
        (sums, counts),
        ratio,
        paired=True,
        vectorized=True,
        n_resamples=resamples,
        method="percentile",
        rng=np.random.default_rng(seed),
    ).confidence_interval
    return float(found.low), float(found.high)


def hierarchical_bootstrap(rows: pd.DataFrame, seed: int = 0, resamples: int = RESAMPLES) -> tuple[float, float] | None:
    """95 % percentile interval of the mean of `value`, seeds and clusters both resampled.

    Every seed meets every cluster, so both are drawn and the cells of the drawn rows and columns averaged
    (the pigeonhole bootstrap, whose variance is never too small in the long run).

    Source: Owen 2007, Ann. Appl. Stat. 1, 386-411.

    Returns:
        None with fewer than two seeds.
    """
    import numpy as np

    if rows["seed"].nunique() < 2:
        return None
    sums = rows.pivot_table(index="seed", columns="cluster", values="value", aggfunc="sum").fillna(0).to_numpy(float)
    counts = (
        rows.pivot_table(index="seed", columns="cluster", values="value", aggfunc="count").fillna(0).to_numpy(float)
    )
    generator = np.random.default_rng(seed)
    seeds = _draws(generator, sums.shape[0], resamples)
    clusters = _draws(generator, sums.shape[1], resamples)
    total = np.einsum("bs,sd,bd->b", seeds, sums, clusters)
    count = np.einsum("bs,sd,bd->b", seeds, counts, clusters)
    means = total[count > 0] / count[count > 0]
    return float(np.quantile(means, 0.025)), float(np.quantile(means, 0.975))


def interquartile_mean(scores: Sequence[float] | np.ndarray) -> float:
    """The mean of the middle half, robust to one lucky or failed training.

    Source: Agarwal et al. 2021, NeurIPS, "Deep RL at the edge of the statistical precipice"; scipy's `trim_mean`.
    """
    from scipy.stats import trim_mean

    return float(trim_mean(list(scores), 0.25))


def probability_of_improvement(first: Sequence[float], second: Sequence[float]) -> float:
    """The chance that a training of the first kind beats one of the second, ties counting half.

    Source: Agarwal et al. 2021; the Mann-Whitney U statistic over the number of pairs, by scipy.
    """
    from scipy.stats import mannwhitneyu

    u = mannwhitneyu(list(first), list(second), method="asymptotic").statistic if _varies(first, second) else None
    return 0.5 if u is None else float(u) / (len(first) * len(second))


def holm(p_values: Sequence[float]) -> list[float]:
    """p values corrected for being one family, step down.

    Source: Holm 1979, Scand. J. Stat. 6, 65-70; statsmodels' `multipletests`.
    """
    if not p_values:
        return []
    from statsmodels.stats.multitest import multipletests

    return [float(p) for p in multipletests(list(p_values), method="holm")[1]]


def interquartile_mean_interval(matrix: np.ndarray, seed: int = 0) -> tuple[float, float] | None:
    """95 % percentile interval of `interquartile_mean` of [seeds, clusters] scores, seeds resampled per cluster.

    Source: the stratified bootstrap of Agarwal et al. 2021.
    """
    import numpy as np
    from scipy.stats import trim_mean

    if matrix.shape[0] < 2:
        return None
    index = np.random.default_rng(seed).integers(matrix.shape[0], size=(1000, *matrix.shape))
    found = trim_mean(np.take_along_axis(matrix[None], index, axis=1).reshape(1000, -1), 0.25, axis=1)
    return float(np.quantile(found, 0.025)), float(np.quantile(found, 0.975))


def _draws(generator: np.random.Generator, size: int, resamples: int) -> Any:
    """How often each of `size` units is drawn in each resample, [resamples, size]."""
    import numpy as np

    return generator.multinomial(size, np.full(size, 1 / size), size=resamples).astype(float)


def _varies(first: Sequence[float], second: Sequence[float]) -> bool:
    return len({*first, *second}) > 1

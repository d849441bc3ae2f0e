"""Secondary statistics: item level, training level, and corrections over a family."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from math import comb
from typing import TYPE_CHECKING

from harness.compare.variances import codes

if TYPE_CHECKING:
    import numpy as np
    import polars as pl

RESAMPLES = 4000
FEW_CLUSTERS = 20
"""Below this number of clusters a percentile bootstrap is too narrow; shown, but no verdict rests
on it.
"""


@dataclass(frozen=True, slots=True)
class McNemar:
    """Questions that only one of two runs answered, and the exact test of their balance."""

    only_first: int
    only_second: int
    p: float


def mcnemar_exact(first: Sequence[float], second: Sequence[float]) -> McNemar:
    """Return the exact McNemar test of paired right-or-wrong answers of two checkpoints.

    It treats questions as independent.

    Source: McNemar 1947, Psychometrika 12, 153-157, in its exact binomial form.

    Args:
        first, second: 1 for right and 0 for wrong, question by question, [questions].
    """
    # Questions that both answered alike say nothing about which one is better, so only the others
    # count: under "no difference" each is like the toss of a coin.
    ahead = behind = 0
    for one, other in zip(first, second, strict=True):
        ahead += one >= 1 > other
        behind += other >= 1 > one
    tossed = ahead + behind
    as_few = 0
    for heads in range(min(ahead, behind) + 1):
        as_few += comb(tossed, heads)
    return McNemar(ahead, behind, min(1.0, 2 * as_few / 2**tossed))


def cluster_bootstrap(
    rows: pl.DataFrame, seed: int = 0, resamples: int = RESAMPLES
) -> tuple[float, float] | None:
    """Return the 95 % percentile interval of the mean of `value`, with whole clusters resampled.

    It holds for exactly these checkpoints and other clusters, and excludes the effect of another
    training.

    Source: Davison and Hinkley 1997, Bootstrap Methods, section 3.8.

    Args:
        rows: Columns `cluster` and `value`, for example paired differences.

    Returns:
        None with fewer than two clusters.
    """
    import numpy as np

    cluster, value = codes(rows["cluster"]), rows["value"].to_numpy()
    sums, counts = np.bincount(cluster, value), np.bincount(cluster)
    if len(sums) < 2:
        return None
    # Equal means of all clusters leave nothing to resample, and rounding would show a width.
    if np.ptp(sums / counts) == 0:
        return float(sums[0] / counts[0]), float(sums[0] / counts[0])
    drawn = np.random.default_rng(seed).integers(len(sums), size=(resamples, len(sums)))
    return _percentiles(sums[drawn].sum(axis=1) / counts[drawn].sum(axis=1))


def hierarchical_bootstrap(
    rows: pl.DataFrame, seed: int = 0, resamples: int = RESAMPLES
) -> tuple[float, float] | None:
    """Return the 95 % percentile interval of the mean of `value`, resampling seeds and clusters.

    Every seed has every cluster, so both are drawn, and the cells of the drawn rows and columns
    averaged (the pigeonhole bootstrap, with a variance that is never too small in the long run).

    Source: Owen 2007, Ann. Appl. Stat. 1, 386-411.

    Returns:
        None with fewer than two seeds.
    """
    import numpy as np

    if rows["seed"].n_unique() < 2:
        return None
    sums, counts = cells(rows)
    generator = np.random.default_rng(seed)
    seeds = _draws(generator, sums.shape[0], resamples)
    clusters = _draws(generator, sums.shape[1], resamples)
    # b: resample, s: seed, d: cluster. Numbers of draws instead of drawn copies keep the arrays
    # small. A resample may consist of empty cells only; it has no mean and is left out.
    total = np.einsum("bs,sd,bd->b", seeds, sums, clusters)
    count = np.einsum("bs,sd,bd->b", seeds, counts, clusters)
    return _percentiles(total[count > 0] / count[count > 0])


def cells(rows: pl.DataFrame) -> tuple[np.ndarray, np.ndarray]:
    """Return sums of `value` and numbers of rows, [seeds, clusters] each."""
    import numpy as np

    seed, cluster = codes(rows["seed"]), codes(rows["cluster"])
    sums = np.zeros((seed.max() + 1, cluster.max() + 1))
    counts = sums.copy()
    np.add.at(sums, (seed, cluster), rows["value"].to_numpy())
    np.add.at(counts, (seed, cluster), 1)
    return sums, counts


def interquartile_mean(scores: Sequence[float] | np.ndarray) -> float:
    """Return the mean of the middle half, robust to one lucky or failed training.

    Source: Agarwal et al. 2021, NeurIPS, "Deep RL at the edge of the statistical precipice".
    """
    import numpy as np

    return float(_middle(np.array(scores, float)))


def probability_of_improvement(first: Sequence[float], second: Sequence[float]) -> float:
    """Return the probability that a training of the first kind beats one of the second.

    Ties count half.

    Source: Agarwal et al. 2021; the Mann-Whitney U statistic over the number of pairs.
    """
    wins = 0.0
    for one, other in product(first, second):
        wins += (one > other) + (one == other) / 2
    return wins / (len(first) * len(second))


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p values corrected as one family, step down.

    Source: Holm 1979, Scand. J. Stat. 6, 65-70.
    """
    count = len(p_values)
    corrected, least = [0.0] * count, 0.0
    ascending = sorted(range(count), key=p_values.__getitem__)
    for place, index in enumerate(ascending):
        # A larger p value must not become the smaller one by its smaller factor: stepping down
        # ends at the first hypothesis that is not rejected.
        least = max(least, min(1.0, (count - place) * p_values[index]))
        corrected[index] = least
    return corrected


def interquartile_mean_interval(matrix: np.ndarray, seed: int = 0) -> tuple[float, float] | None:
    """Return the 95 % percentile interval of `interquartile_mean` of [seeds, clusters] scores.

    Seeds are resampled per cluster.

    Source: the stratified bootstrap of Agarwal et al. 2021.
    """
    import numpy as np

    if matrix.shape[0] < 2:
        return None
    # Every cluster draws its own seeds: resampling whole seeds would give too few different means.
    index = np.random.default_rng(seed).integers(matrix.shape[0], size=(1000, *matrix.shape))
    drawn = np.take_along_axis(matrix[None], index, axis=1)
    return _percentiles(_middle(drawn.reshape(1000, -1)))


def _middle(scores: np.ndarray) -> np.ndarray:
    """Return the mean of the middle half of [..., scores]."""
    import numpy as np

    cut = scores.shape[-1] // 4
    return np.asarray(np.sort(scores)[..., cut : scores.shape[-1] - cut].mean(axis=-1))


def _percentiles(drawn: np.ndarray) -> tuple[float, float]:
    """Return the 95 % percentile interval."""
    import numpy as np

    low, high = np.quantile(drawn, (0.025, 0.975)).tolist()
    return low, high


def _draws(generator: np.random.Generator, size: int, resamples: int) -> np.ndarray:
    """Count the draws of each of `size` units in each resample, [resamples, size]."""
    import numpy as np

    return generator.multinomial(size, np.full(size, 1 / size), size=resamples).astype(float)

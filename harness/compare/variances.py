"""Variances of means with grouped values: weights, and degrees of freedom."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    import polars as pl


def ways_of(by_seed: Any, by_cluster: Any, both: Any, seed_df: float, cluster_df: float) -> Any:
    """Return the ways to split a variance between seeds and clusters; of numbers or arrays.

    Args:
        by_seed, by_cluster, both: Variances clustered by seed, by cluster, and by both together.
    """
    import numpy as np

    # The joint effect is in both sums. It is taken out of one of them, either way, because nothing
    # shows which degrees of freedom it has.
    return (
        ((by_seed, seed_df), (np.maximum(by_cluster - both, 0.0), cluster_df)),
        ((np.maximum(by_seed - both, 0.0), seed_df), (by_cluster, cluster_df)),
    )


def codes(column: pl.Series) -> np.ndarray:
    """Return the index of every value among the sorted distinct ones, [rows]."""
    import numpy as np

    if not column.dtype.is_numeric():
        return np.asarray(column.rank("dense")).astype(int) - 1
    return np.unique(column.to_numpy(), return_inverse=True)[1]


def cluster_variance(value: object, groups: object) -> tuple[float, np.ndarray]:
    """Return the variance of a mean, robust to dependence inside groups of any size.

    The square of every group's part of the mean is scaled by `square_weights`: without that, few
    groups of unequal size give several times as many false alarms as promised. With equal groups
    this is the variance of their means over their number.

    Returns:
        The variance, nan for fewer than two groups, and each group's share of all values, [groups].
    """
    import numpy as np

    values = np.asarray(value, float)
    group = np.unique(np.asarray(groups), return_inverse=True)[1]
    share = np.bincount(group) / len(values)
    if len(share) < 2:
        return math.nan, share
    sums = np.bincount(group, values - values.mean()) / len(values)
    return float((sums**2 * square_weights(share)).sum()), share


def square_weights(share: np.ndarray, times: int = 1) -> np.ndarray:
    """Return the scale of each group's square, given its share of all values, [groups].

    With these weights the variance is unbiased if all values of a group are equal. The other usual
    weights, 1 / (1 - share), assume independent values; for a group with nearly all values they
    reduce it to a fifth or less.

    Source: Bell and McCaffrey 2002, Survey Methodology 28, 169-181 (CR2), for a mean; with a
    working model of equal values in a group, Pustejovsky and Tipton 2018, J. Bus. Econ. Stat. 36,
    672-683.

    Args:
        times: Number of copies of every group, which divide its share.
    """
    import numpy as np

    return np.asarray(1 / (1 - 2 * share / times + (share**2).sum() / times))


def share_df(share: np.ndarray) -> float:
    """Return the degrees of freedom of the variance over groups with these shares, [groups].

    There are two or more groups. The figure holds if all values of a group are equal, and is the
    smallest.

    Source: Satterthwaite 1946, Biometrics Bull. 2, 110-114, as in Bell and McCaffrey 2002.
    """
    import numpy as np

    # Clusters of equal size give equal terms, so each size is computed once and counted: with one
    # cluster per question the matrix would have millions of cells.
    whole, weight = (share**2).sum(), share**2 * square_weights(share)
    size, first, times = np.unique(share, return_index=True, return_counts=True)
    between = np.outer(weight[first], weight[first]) * (whole - size[:, None] - size) ** 2
    pairs = np.outer(times, times) - np.diag(times)
    return float(whole**2 / ((times * size**4).sum() + (pairs * between).sum()))


def least_variance(value: object, tasks: object) -> float:
    """Return the larger variance of a mean if only questions or only scores varied."""
    import numpy as np

    scores = np.asarray(value, float)
    by_task, _ = cluster_variance(scores, tasks)
    by_score = float(scores.var(ddof=1)) / len(scores)
    return by_score if math.isnan(by_task) else max(by_task, by_score)

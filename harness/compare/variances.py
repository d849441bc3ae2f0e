"""Variances of means whose values lie in groups: weights, and degrees of freedom."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    import polars as pl


def ways_of(by_seed: Any, by_cluster: Any, both: Any, seed_df: float, cluster_df: float) -> Any:
    """The ways to deal a variance out to seeds and clusters, as of `Estimate`; of numbers or arrays.

    Args:
        by_seed, by_cluster, both: Variances clustered by seed, by cluster, and by both together.
    """
    import numpy as np

    return (
        ((by_seed, seed_df), (np.maximum(by_cluster - both, 0.0), cluster_df)),
        ((np.maximum(by_seed - both, 0.0), seed_df), (by_cluster, cluster_df)),
    )


def codes(column: pl.Series) -> np.ndarray:
    """The place of every value among the distinct ones in order, from 0, [rows]."""
    import numpy as np

    if not column.dtype.is_numeric():
        return np.asarray(column.rank("dense")).astype(int) - 1
    return np.unique(column.to_numpy(), return_inverse=True)[1]


def cluster_variance(value: object, groups: object) -> tuple[float, np.ndarray]:
    """Variance of a mean, robust to dependence inside groups of any size.

    The square of every group's part of the mean is scaled by `square_weights`: without that, few groups of unequal size
    give several times as many false alarms as promised. With equal groups this is the variance of their means over
    their number.

    Returns:
        It, nan for fewer than two groups, and the share of all values that each group holds, [groups].
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
    """By what the squares of groups are scaled that hold these shares of all values, [groups].

    They make the variance the true one on average if values of a group are all the same. With a group of nearly all
    values, the other usual weights, 1 / (1 - share), which assume that values do not depend on their group, leave
    of it a fifth and less.

    Source: Bell and McCaffrey 2002, Survey Methodology 28, 169-181 (CR2), for a mean; with a working model of equal
    values in a group, Pustejovsky and Tipton 2018, J. Bus. Econ. Stat. 36, 672-683.

    Args:
        times: How often every group is there, with its share divided by it.
    """
    import numpy as np

    return np.asarray(1 / (1 - 2 * share / times + (share**2).sum() / times))


def share_df(share: np.ndarray) -> float:
    """Degrees of freedom of the variance over groups with these shares of all values, [groups], two or more.

    They hold if values of a group are all the same, and are the fewest.

    Source: Satterthwaite 1946, Biometrics Bull. 2, 110-114, as in Bell and McCaffrey 2002.
    """
    import numpy as np

    whole, weight = (share**2).sum(), share**2 * square_weights(share)
    size, first, times = np.unique(share, return_index=True, return_counts=True)
    between = np.outer(weight[first], weight[first]) * (whole - size[:, None] - size) ** 2
    pairs = np.outer(times, times) - np.diag(times)
    return float(whole**2 / ((times * size**4).sum() + (pairs * between).sum()))


def least_variance(value: object, tasks: object) -> float:
    """Variance of a mean if nothing but questions, or single scores, varied: the larger of the two."""
    import numpy as np

    scores = np.asarray(value, float)
    by_task, _ = cluster_variance(scores, tasks)
    by_score = float(scores.var(ddof=1)) / len(scores)
    return by_score if math.isnan(by_task) else max(by_task, by_score)

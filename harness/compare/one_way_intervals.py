"""Tests of a difference by seeds alone and by clusters alone; the verdict uses both.

A difference that holds for new seeds may hold for these questions only, and one that holds for new
questions for these trainings only. Where only one side decides, the comparison shows both.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from harness.compare.estimates import Estimate, crossed_mean
from harness.compare.statistics import holm

if TYPE_CHECKING:
    import polars as pl

    from harness.compare.keys import Pair, Side, Sides


def sides_of(rows: pl.DataFrame, width: float = 1.0) -> Sides | None:
    """Return the tests of paired differences with only seeds, and only clusters, as independent.

    Args:
        rows: Columns `seed`, `cluster`, `task_id` and `value`.
        width: Largest difference of two scores.

    Returns:
        None with one seed or one cluster, when there is only one such test.
    """
    import polars as pl

    if rows["seed"].n_unique() < 2 or rows["cluster"].n_unique() < 2:
        return None
    # With all questions in one cluster, or all scores in one seed, the other side counts as fixed.
    by_seed = crossed_mean(rows.with_columns(cluster=pl.lit("all")), width)
    by_cluster = crossed_mean(rows.with_columns(seed=pl.lit(0)), width)
    assert by_seed is not None and by_cluster is not None, "there are rows"
    return {"seeds": _side(by_seed), "clusters": _side(by_cluster)}


def correct_sides(pairs: Sequence[Pair]) -> None:
    """Correct the p values of every side over all pairs, as those of the verdict are."""
    seeds_alone: list[Side] = []
    clusters_alone: list[Side] = []
    for pair in pairs:
        if "sides" in pair:
            seeds_alone.append(pair["sides"]["seeds"])
            clusters_alone.append(pair["sides"]["clusters"])
    # A family for each side: nobody chooses the side with the smaller p.
    _correct(seeds_alone)
    _correct(clusters_alone)


def _correct(sides: Sequence[Side]) -> None:
    corrected = holm([side["p"] for side in sides])
    for side, p_holm in zip(sides, corrected, strict=True):
        side["p_holm"] = p_holm


def disagreeing(pairs: Sequence[Pair], alpha: float) -> list[Pair]:
    """Return pairs with arms that differ by the test of one side but not of the other."""
    disagree = []
    for pair in pairs:
        if "sides" not in pair:
            continue
        sides = pair["sides"]
        if (sides["seeds"]["p_holm"] < alpha) != (sides["clusters"]["p_holm"] < alpha):
            disagree.append(pair)
    return disagree


def _side(estimate: Estimate) -> Side:
    p = estimate.p_difference()
    return {"low": estimate.low, "high": estimate.high, "p": p, "p_holm": p}

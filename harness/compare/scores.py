"""Scores of validation questions as tables, and their pairing between two arms."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import polars as pl

    from harness.compare.keys import PairedBy
    from harness.runs.reading import Run


def scores(runs: Sequence[Run], step: int | None = None) -> pl.DataFrame:
    """Return scored validations: columns seed, step, cluster, task_id, difficulty, value."""
    import polars as pl

    return pl.concat([run.scores(step) for run in runs])


def span_of(runs: Sequence[Run]) -> tuple[float, float]:
    """Return the lowest and highest reward of all runs."""
    lowest = []
    highest = []
    for run in runs:
        low, high = run.span
        lowest.append(low)
        highest.append(high)
    return min(lowest), max(highest)


def worst_cases(runs: Sequence[Run]) -> tuple[float, float] | None:
    """Return the last mean score with the lowest reward for unscored rollouts, and the highest.

    Returns:
        None if everything was scored.
    """
    rewards: list[float | None] = []
    for run in runs:
        rewards += run.validation()["reward"].to_list()
    unscored = rewards.count(None)
    if not unscored:
        return None
    # Why a rollout is unscored may depend on its answer, so leaving it out may favour an arm. Any
    # true mean lies between these two.
    scored_sum = sum(value for value in rewards if value is not None)
    lowest, highest = span_of(runs)
    least = (scored_sum + unscored * lowest) / len(rewards)
    most = (scored_sum + unscored * highest) / len(rewards)
    return least, most


def paired_differences(first: pl.DataFrame, second: pl.DataFrame) -> tuple[pl.DataFrame, PairedBy]:
    """Return first minus second, question by question, and the way of pairing: `seed` or `task`.

    Arms without a common seed are averaged over their seeds first, which loses the uncertainty of
    training.
    """
    import polars as pl

    keys = ["seed", "cluster", "task_id"]
    paired: PairedBy = "seed"
    if not set(first["seed"].unique()) & set(second["seed"].unique()):
        keys, paired = ["cluster", "task_id"], "task"
        first = first.group_by(keys).agg(pl.mean("value")).sort(keys)
        second = second.group_by(keys).agg(pl.mean("value")).sort(keys)
    # An inner join: a question that only one arm has scored has no difference, and its score alone
    # would shift that arm's mean by how hard the question is.
    of_first = first.lazy().select(*keys, value_first="value")
    of_second = second.lazy().select(*keys, value_second="value")
    both = of_first.join(of_second, on=keys, maintain_order="left")
    both = both.with_columns(value=pl.col("value_first") - pl.col("value_second"))
    return (both if paired == "seed" else both.with_columns(seed=0)).collect(), paired


def areas(runs: Sequence[Run], steps: Sequence[int]) -> pl.DataFrame:
    """Return the area under every question's curve over these validated steps.

    It follows the trapezoid rule, divided by the range of steps. It is linear in the answers, so
    its mean over questions is the area under the curve of accuracy. Questions without a score at
    some step are left out for that seed.

    Args:
        steps: At least two, in ascending order. Every run was validated at each of them.

    Returns:
        Columns seed, cluster, task_id, value (0 to 1).
    """
    import polars as pl

    frames = []
    for run in runs:
        keys = ["cluster", "task_id"]
        at_step = []
        for step in steps:
            value = pl.col("value").filter(pl.col("step") == step).mean()
            at_step.append(value.alias(str(step)))
        # Steps need not be equally far apart, so every trapezoid has its own width.
        parts = []
        for left, right in itertools.pairwise(steps):
            parts.append((pl.col(str(left)) + pl.col(str(right))) * (right - left) / 2)
        table = run.scored.lazy().group_by(keys).agg(at_step).drop_nulls().sort(keys)
        area = pl.sum_horizontal(parts) / (steps[-1] - steps[0])
        seed = pl.lit(run.pairing, pl.Int64).alias("seed")
        frames.append(table.select(seed, *keys, value=area).collect())
    return pl.concat(frames)

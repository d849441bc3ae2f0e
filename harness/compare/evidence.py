"""Compute evidence that no verdict uses: checkpoints, trainings, a pair's unscored rollouts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

from harness.compare import statistics
from harness.compare.runs import STARTS_APART
from harness.compare.scores import scores, worst_cases

if TYPE_CHECKING:
    import polars as pl

    from harness.compare.keys import McNemarData, Training
    from harness.compare.runs import Run


def mcnemar(rows: pl.DataFrame) -> list[McNemarData]:
    """Return McNemar's test of the two checkpoints of each seed."""
    found: list[McNemarData] = []
    for group in rows.partition_by("seed"):
        test = statistics.mcnemar_exact(
            group["value_first"].to_list(), group["value_second"].to_list()
        )
        found.append(
            {
                "seed": group["seed"][0] % STARTS_APART,
                "only_first": test.only_first,
                "only_second": test.only_second,
                "p": test.p,
            }
        )
    return found


def training(runs: Sequence[Run], base_runs: Sequence[Run], rows: pl.DataFrame) -> Training:
    """Return evidence on the trainings of the seeds that both arms have."""
    common = set(rows["seed"].unique())
    firsts, seconds = (
        [cast(float, run.scores()["value"].mean()) for run in arm if run.pairing in common]
        for arm in (runs, base_runs)
    )
    return {
        "hierarchical_bootstrap": statistics.hierarchical_bootstrap(rows),
        "probability_of_improvement": statistics.probability_of_improvement(firsts, seconds),
        "interquartile_mean_difference": statistics.interquartile_mean(firsts)
        - statistics.interquartile_mean(seconds),
    }


def bounds(
    runs: Sequence[Run], base_runs: Sequence[Run], seeds: set[int] | None
) -> tuple[float, float] | None:
    """Return the difference with all unscored rollouts counted against the arm, and all for it.

    Returns:
        None if all rollouts were scored.
    """
    chosen = [
        [run for run in group if seeds is None or run.pairing in seeds]
        for group in (runs, base_runs)
    ]
    cases = [worst_cases(group) for group in chosen]
    if cases == [None, None]:
        return None
    (low, high), (base_low, base_high) = (
        case or (cast(float, scores(group)["value"].mean()),) * 2
        for case, group in zip(cases, chosen, strict=True)
    )
    return low - base_high, high - base_low

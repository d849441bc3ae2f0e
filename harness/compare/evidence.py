"""Compute evidence that no verdict uses: checkpoints, trainings, a pair's unscored rollouts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

from harness.compare import statistics
from harness.compare.scores import scores, worst_cases
from harness.runs.reading import STARTS_APART

if TYPE_CHECKING:
    import polars as pl

    from harness.compare.keys import McNemarData, Training
    from harness.runs.reading import Run


def mcnemar(rows: pl.DataFrame) -> list[McNemarData]:
    """Return McNemar's test of the two checkpoints of each seed."""
    tests: list[McNemarData] = []
    # Seed by seed: pooled, the same question of several seeds would count as several questions.
    for group in rows.partition_by("seed"):
        test = statistics.mcnemar_exact(
            group["value_first"].to_list(), group["value_second"].to_list()
        )
        tests.append(
            {
                "seed": group["seed"][0] % STARTS_APART,
                "only_first": test.only_first,
                "only_second": test.only_second,
                "p": test.p,
            }
        )
    return tests


def training(runs: Sequence[Run], base_runs: Sequence[Run], rows: pl.DataFrame) -> Training:
    """Return evidence on the trainings of the seeds that both arms have."""
    common = set(rows["seed"].unique())
    firsts = _mean_scores(runs, common)
    seconds = _mean_scores(base_runs, common)
    return {
        "hierarchical_bootstrap": statistics.hierarchical_bootstrap(rows),
        "probability_of_improvement": statistics.probability_of_improvement(firsts, seconds),
        "interquartile_mean_difference": statistics.interquartile_mean(firsts)
        - statistics.interquartile_mean(seconds),
    }


def _mean_scores(runs: Sequence[Run], seeds: set[int]) -> list[float]:
    """Return the mean score of every run with one of these seeds."""
    means = []
    for run in _of_seeds(runs, seeds):
        means.append(cast(float, run.scores()["value"].mean()))
    return means


def _of_seeds(runs: Sequence[Run], seeds: set[int]) -> list[Run]:
    """Return the runs with one of these seeds."""
    return [run for run in runs if run.pairing in seeds]


def bounds(
    runs: Sequence[Run], base_runs: Sequence[Run], seeds: set[int] | None
) -> tuple[float, float] | None:
    """Return the difference with all unscored rollouts counted against the arm, and all for it.

    Returns:
        None if all rollouts were scored.
    """
    if seeds is not None:
        runs, base_runs = _of_seeds(runs, seeds), _of_seeds(base_runs, seeds)
    own, base = worst_cases(runs), worst_cases(base_runs)
    if own is None and base is None:
        return None
    low, high = own or _certain(runs)
    base_low, base_high = base or _certain(base_runs)
    return low - base_high, high - base_low


def _certain(runs: Sequence[Run]) -> tuple[float, float]:
    """Return the mean score of fully scored runs as both ends of a range."""
    mean = cast(float, scores(runs)["value"].mean())
    return mean, mean

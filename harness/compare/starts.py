"""Starts: the policies that trainings begin with.

Seeds of one start share it, so they say nothing about another. If the trainings of an arm begin
with several policies, which `--allow model` permits, trainings are paired by start and seed, and a
verdict treats starts as independent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from harness.compare.estimates import crossed_mean
from harness.compare.scores import paired_differences, scores
from harness.policies.catalogue import known
from harness.runs.reading import STARTS_APART

if TYPE_CHECKING:
    import polars as pl

    from harness.compare.keys import EstimateData, Start
    from harness.runs.reading import Run


def number_starts(runs: Sequence[Run]) -> None:
    """Number the starts of trainings from 0, by first appearance; all are 0 with one per arm.

    Arms that begin with a policy each differ in it on purpose: then it is no factor within an arm.
    """
    numbers: dict[str, int] = {}
    models_by_arm: dict[str, set[str]] = {}
    for run in runs:
        if run.trained:
            numbers.setdefault(_model(run), len(numbers))
            models_by_arm.setdefault(run.arm, set()).add(_model(run))
    several = any(len(models) > 1 for models in models_by_arm.values())
    for run in runs:
        run.start = numbers[_model(run)] if several and run.trained else 0


def over_starts(rows: pl.DataFrame) -> pl.DataFrame:
    """Return paired differences by start instead of seed, if they have several starts."""
    import polars as pl

    # Seeds of one start depend on each other. Counting each as independent would give intervals
    # that hold for this start only, and too many false alarms for other ones.
    started = rows.with_columns(seed=pl.col("seed") // STARTS_APART)
    return started if started["seed"].n_unique() > 1 else rows


def starts_of(arms: Mapping[str, Sequence[Run]], baseline: str, width: float) -> list[Start]:
    """Return every start of trainings with the differences that its seeds show, in order.

    Args:
        arms: Runs by arm.
        baseline: The arm to which differences are taken.
        width: Largest difference of two rewards.

    Returns:
        Nothing of evaluations, or of one start that no recipe is known to have made.
    """
    by_number: dict[int, list[Run]] = {}
    models: set[str] = set()
    for group in arms.values():
        for run in group:
            if not run.trained:
                return []
            by_number.setdefault(run.start, []).append(run)
            models.add(_model(run))
    several = len(by_number) > 1
    # Every arm has a policy of its own: that is what is compared, not a start that seeds share.
    if not several and len(models) > 1:
        return []
    starts = []
    for number, runs_of_start in sorted(by_number.items()):
        starts.append(_start(number, runs_of_start, arms, baseline, width))
    return starts if several or starts[0]["made_by"] else []


def _start(
    number: int,
    runs: Sequence[Run],
    arms: Mapping[str, Sequence[Run]],
    baseline: str,
    width: float,
) -> Start:
    """One start, and each arm's difference over its seeds alone."""
    base_runs = _from_start(arms[baseline], number)
    differences: dict[str, EstimateData] = {}
    for name, arm_runs in arms.items():
        group = _from_start(arm_runs, number)
        if name == baseline or not group or not base_runs:
            continue
        rows, _ = paired_differences(scores(group), scores(base_runs))
        if difference := crossed_mean(rows, width):
            differences[name] = difference.data()
    name = Path(str(runs[0].record["config"]["policy"]["path"])).name
    return {
        "policy": name,
        "model": _model(runs[0]),
        "made_by": _made_by(name),
        "trainings": len(runs),
        "differences": differences,
    }


def _from_start(runs: Sequence[Run], number: int) -> list[Run]:
    """Return the runs that began with the policy of this number."""
    return [run for run in runs if run.start == number]


def _model(run: Run) -> str:
    """Return what identifies the initial policy of a run."""
    return str(run.record["identity"]["model"])


def _made_by(policy: str) -> str:
    """Return a policy's recipe command, or `a recipe` for a bundled policy; empty otherwise."""
    listed = known().get(policy)
    if listed is None:
        return ""
    command, _, _ = listed.made_by.partition("`")
    return command or ("a recipe, bundled" if listed.bundled else "")

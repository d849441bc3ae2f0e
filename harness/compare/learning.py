"""Secondary measures of the course of training: accuracy at a checkpoint, area under the curve.

On a saturated task set, arms with the same end may still have learned differently. No verdict
rests on these.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

from harness.compare import statistics
from harness.compare.estimates import accuracy, crossed_mean
from harness.compare.scores import areas, paired_differences, scores

if TYPE_CHECKING:
    import polars as pl

    from harness.compare.keys import Learned, Learning, Measure
    from harness.runs.reading import Run


def learn(
    arms: Mapping[str, Sequence[Run]],
    baseline: str,
    checkpoint: int | None,
    span: tuple[float, float] = (0.0, 1.0),
) -> Learning:
    """Return every measure of every arm, and its difference, with the main comparison's test.

    Args:
        checkpoint: A training step with a validation of every run, declared by the study; None
            leaves it out. Evaluations have no measure.
        span: Lowest and highest reward.
    """
    runs: list[Run] = []
    for group in arms.values():
        runs += group
    if any(not run.trained for run in runs):
        return {"measures": [], "arms": {}}
    # A measure of only some runs would compare other seeds than the verdicts do.
    taken: dict[Measure, dict[str, pl.DataFrame]] = {}
    if checkpoint is not None and all(checkpoint in run.val_curve() for run in runs):
        taken["checkpoint"] = {}
        for name, group in arms.items():
            taken["checkpoint"][name] = scores(group, checkpoint)
    # Areas over other steps differ even if the curves do not.
    common = sorted(set.intersection(*(set(run.val_curve()) for run in runs)))
    if len(common) > 1:
        curves: dict[str, pl.DataFrame] = {}
        complete = True
        for name, group in arms.items():
            curves[name] = areas(group, common)
            complete = complete and _covers(curves[name], group)
        if complete:
            taken["area"] = curves
    return {"measures": list(taken), "arms": held_against(taken, baseline, span)}


def _covers(table: pl.DataFrame, runs: Sequence[Run]) -> bool:
    """Return whether a table has rows of every run."""
    return {run.pairing for run in runs} <= set(table["seed"].unique())


Key = TypeVar("Key", bound=str)


def held_against(
    taken: Mapping[Key, Mapping[str, pl.DataFrame]], baseline: str, span: tuple[float, float]
) -> dict[str, dict[Key, Learned]]:
    """Return every measure of every arm with interval and difference, as one family (Holm).

    Args:
        taken: Rows with `value` of every arm, by measure.
        span: Lowest and highest value.
    """
    by_arm: dict[str, dict[Key, Learned]] = {}
    tested: list[Learned] = []
    for key, tables in taken.items():
        for name, table in tables.items():
            estimate = accuracy(table, span)
            entry: Learned = {"estimate": estimate.data() if estimate else None, "difference": None}
            by_arm.setdefault(name, {})[key] = entry
            if name == baseline:
                continue
            rows, _ = paired_differences(table, tables[baseline])
            if difference := crossed_mean(rows, span[1] - span[0]):
                entry["difference"], entry["p"] = difference.data(), difference.p_difference()
                tested.append(entry)
    # All measures of all arms are one family: the more of them, the likelier a small p by chance.
    corrected = statistics.holm([entry["p"] for entry in tested])
    for entry, p_holm in zip(tested, corrected, strict=True):
        entry["p_holm"] = p_holm
    return by_arm

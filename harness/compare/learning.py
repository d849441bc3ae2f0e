"""Secondary measures, of the way rather than the end: accuracy at a checkpoint fixed beforehand, area under the curve.

Where a task set saturates, arms that end alike may still have learned differently. No verdict rests on these.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from harness.compare import statistics
from harness.compare.estimates import accuracy, crossed_mean
from harness.compare.scores import areas, paired_differences, scores

if TYPE_CHECKING:
    import pandas as pd

    from harness.compare.runs import Run


def learn(arms: Mapping[str, Sequence[Run]], baseline: str, checkpoint: int | None) -> dict[str, Any]:
    """Every measure of every arm, and its difference to the baseline, with the test of the main comparison.

    Args:
        checkpoint: A training step at which every run was validated, stated by the study; None leaves it out.

    Returns:
        `measures` (names of those that could be taken: `checkpoint`, `area`) and, by arm, `arms` with estimate,
        difference and `p_holm`: p values are corrected over all arms and measures together. Empty for evaluations.
    """
    runs = [run for group in arms.values() for run in group]
    if any(run.record.get("kind", "train") != "train" for run in runs):
        return {"measures": [], "arms": {}}
    taken: dict[str, dict[str, pd.DataFrame]] = {}
    if checkpoint is not None and all(checkpoint in run.val_curve() for run in runs):
        taken["checkpoint"] = {name: scores(group, checkpoint) for name, group in arms.items()}
    curves = {name: areas(group) for name, group in arms.items()}
    if all(run.seed in set(curves[name]["seed"]) for name, group in arms.items() for run in group):
        taken["area"] = curves
    found: dict[str, dict[str, Any]] = {name: {} for name in arms}
    tested: list[dict[str, Any]] = []
    for key, tables in taken.items():
        for name, table in tables.items():
            estimate = accuracy(table)
            entry: dict[str, Any] = {"estimate": asdict(estimate) if estimate else None, "difference": None}
            found[name][key] = entry
            difference = crossed_mean(paired_differences(table, tables[baseline])[0]) if name != baseline else None
            if difference is not None:
                entry |= {"difference": asdict(difference), "p": difference.p_difference()}
                tested.append(entry)
    for entry, corrected in zip(tested, statistics.holm([entry["p"] for entry in tested]), strict=True):
        entry["p_holm"] = corrected
    return {"measures": list(taken), "arms": found}

"""Figures published by others, shown separately from measured ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, NotRequired

from typing_extensions import TypedDict


class Curve(TypedDict):
    """Validations during a training."""

    steps: Annotated[list[int], "steps that were trained at each validation"]
    accuracies: Annotated[list[float], "share of questions answered right, from 0 to 1"]


class Reference(TypedDict):
    """A figure published by others."""

    task_set: Annotated[str, "that it was measured on"]
    label: Annotated[str, "what was trained"]
    source: Annotated[str, "where it was published"]
    agent_match: NotRequired[Annotated[str, "roles that were trained, as a pattern"]]
    accuracy_initial: NotRequired[Annotated[float, "before training"]]
    accuracy_final: NotRequired[Annotated[float, "at the end of training"]]
    accuracy_best: NotRequired[Annotated[float, "of the best checkpoint"]]
    curve: NotRequired[Annotated[Curve, "validations from before training to its end"]]
    step_s: NotRequired[Annotated[float, "seconds of a step"]]
    rollout_share: NotRequired[Annotated[float, "of a step's time"]]
    update_share: NotRequired[Annotated[float, "of a step's time"]]
    remark: NotRequired[Annotated[str, "caveat"]]
    checked: NotRequired[Annotated[bool, "whether the figure was read in its source"]]


def reference_rows(task_set: str | None = None) -> list[Reference]:
    """Return published rows with their full source, optionally of one task set only."""
    data = json.loads(Path(__file__).with_name("references.json").read_text(encoding="utf-8"))
    rows: list[Reference] = data["rows"]
    chosen: list[Reference] = []
    for row in rows:
        if task_set is None or row["task_set"] == task_set:
            chosen.append({**row, "source": data["sources"][row["source"]]})
    return chosen


def reference_note() -> str:
    """Return the note above such rows."""
    data = json.loads(Path(__file__).with_name("references.json").read_text(encoding="utf-8"))
    return str(data["note"])

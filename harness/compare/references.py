"""Figures published by others, shown separately from measured ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, NotRequired

from typing_extensions import TypedDict


class Curve(TypedDict):
    """Validations during a training."""

    steps: Annotated[list[int], "trained steps at each validation"]
    accuracies: Annotated[list[float], "share of questions answered right, from 0 to 1"]


class Reference(TypedDict):
    """A figure published by others."""

    task_set: Annotated[str, "task set of the measurement"]
    label: Annotated[str, "description of the training"]
    source: Annotated[str, "place of publication"]
    agent_match: NotRequired[Annotated[str, "regular expression for the trained roles"]]
    accuracy_initial: NotRequired[Annotated[float, "accuracy before training"]]
    accuracy_final: NotRequired[Annotated[float, "accuracy at the end of training"]]
    accuracy_best: NotRequired[Annotated[float, "accuracy of the best checkpoint"]]
    curve: NotRequired[Annotated[Curve, "validations from before training to its end"]]
    step_s: NotRequired[Annotated[float, "seconds of a step"]]
    rollout_share: NotRequired[Annotated[float, "share of rollouts in a step's time"]]
    update_share: NotRequired[Annotated[float, "share of updates in a step's time"]]
    remark: NotRequired[Annotated[str, "caveat"]]
    checked: NotRequired[Annotated[bool, "whether the figure was checked in its source"]]


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

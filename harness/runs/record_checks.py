"""Check a run's record when it is read, so that no reader of records has to.

Types of fields are those of `harness.runs.schema`. The configuration is any dictionary there,
because older and newer versions have other keys; the keys that readers use are checked here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NotRequired

from typing_extensions import TypedDict

from harness.runs.record_types import fault
from harness.runs.schema import RunRecord
from harness.util.formatting import shown
from harness.util.parsing import at

SEEDS = 2**32
"""Upper bound of seeds."""
_COUNTS = ("config.rollout.group_size", "config.train.batch_size", "config.train.mini_batch_size")
"""Numbers by which readers divide, so they must be positive."""


class _Policy(TypedDict):
    path: str


class _Task(TypedDict):
    name: str
    val_split: str


class _Rollout(TypedDict):
    group_size: int


class _Train(TypedDict):
    batch_size: int
    mini_batch_size: NotRequired[int | None]


class _Configuration(TypedDict):
    """The keys of a record's configuration that readers use."""

    agent: str
    policy: _Policy
    task: _Task
    rollout: _Rollout
    train: _Train
    gpus: NotRequired[int]
    nodes: NotRequired[int]


def record_fault(data: Mapping[str, Any]) -> str | None:
    """Return what is wrong with a record, as `its NAME is ...`, or None."""
    name = fault(data, RunRecord)
    if name is None and (key := fault(data["config"], _Configuration)):
        name = f"config.{key}"
    if name:
        return f"its {name} is missing or of the wrong kind"
    if not data["launches"]:
        return "its launches are empty; a run has at least one"
    if not 0 <= data["seed"] < SEEDS:
        return f"its seed is {shown(data['seed'])}, not a number from 0 to {SEEDS - 1}"
    for place in _COUNTS:
        count = at(data, place)
        if count is not None and count < 1:
            return f"its {place} is {shown(count)}, not a number above 0"
    for step in at(data, "result.val_curve", {}):
        if not (step.isascii() and step.isdigit()):
            return f"its result.val_curve has the key {shown(step)}, not a step"
    return None

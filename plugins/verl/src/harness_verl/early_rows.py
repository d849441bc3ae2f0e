"""Write a step's row before its checkpoint, with harness's measures; importing this changes verl.

verl logs a step after the validation that follows its checkpoint. A run that was killed in between
resumed from the checkpoint and never had the row. Here the known part of the row is written before
the checkpoint, and again with the step's time before the validation. verl's own row comes last and
replaces both.
"""

from __future__ import annotations

import numbers
import os
from pathlib import Path
from typing import Any

import orjson
from verl.trainer.ppo.v1.trainer_base import PPOTrainer
from verl.utils.tracking import FileLogger

from harness_verl.names import measured

_step, _save, _validate = PPOTrainer.step, PPOTrainer._save_checkpoint, PPOTrainer._validate
_log = FileLogger.log
_known: dict[str, Any] = {}
"""The running step's metrics and times, which verl fills as it goes."""


def step(self: PPOTrainer, metrics: dict[str, Any], timing_raw: dict[str, float]) -> Any:
    """Run verl's step and keep a reference to its measures while it runs."""
    _known.update(metrics=metrics, times=timing_raw)
    return _step(self, metrics, timing_raw)


def save_checkpoint(self: PPOTrainer) -> None:
    """Save verl's checkpoint after the row of the step before it."""
    write(self.global_steps)
    _save(self)


def validate(self: PPOTrainer) -> Any:
    """Run verl's validation after the row of the step before it."""
    write(self.global_steps)
    return _validate(self)


def write(number: int) -> None:
    """Write the known values of a trained step to a file that sorts before verl's own."""
    logger = os.environ.get("VERL_FILE_LOGGER_PATH", "")
    if not _known or not logger.endswith("-verl.jsonl"):
        return
    values = dict(_known["metrics"])
    for name, seconds in _known["times"].items():
        values[f"timing_s/{name}"] = seconds
    data: dict[str, float] = {}
    for name, value in values.items():
        if _is_number(value):
            data[name] = float(value)
    row = {"step": number, "data": data | measured(data)}
    with Path(logger.removesuffix("-verl.jsonl") + "-early.jsonl").open("ab", buffering=0) as file:
        file.write(orjson.dumps(row) + b"\n")


def log(self: FileLogger, data: dict[str, Any], step: int) -> None:
    """Log verl's row with harness's measures added."""
    _log(self, data | measured(data), step)


def _is_number(value: object) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


PPOTrainer.step, PPOTrainer._save_checkpoint, PPOTrainer._validate = step, save_checkpoint, validate
FileLogger.log = log

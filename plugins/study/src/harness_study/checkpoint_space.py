"""The disk space that the checkpoints of a study's trainings take."""

from __future__ import annotations

import heapq
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from harness.errors import HarnessError
from harness.plugins import make_trainer
from harness.policies import on_disk
from harness.runs.folder import RunFolder
from harness_study.timing import steps_of

if TYPE_CHECKING:
    from harness.config import Config
    from harness_study.state import Step


@dataclass(frozen=True)
class _Size:
    """Bytes of a training's checkpoints: those that stay, and the most while it runs."""

    kept: int = 0
    most: int = 0


def checkpoint_space(steps: Sequence[Step], at_once: int, runs_dir: Path) -> tuple[int, int] | None:
    """Return the needed and the free disk space of trainings that start or are resumed.

    A training that runs may need room for more checkpoints than it keeps
    (`TrainConfig.checkpoints_at_once`). Checkpoints that are on the disk already do not count.

    Args:
        runs_dir: Parent of the study's folder; it may not exist yet.

    Returns:
        Bytes that are needed at least, and bytes that are free; None if no size is known.
    """
    needed = 0
    passing: list[int] = []
    # Trainings of an arm have the same size.
    sizes: dict[str, _Size] = {}
    for step in steps:
        job = step.job
        if job.kind != "train" or step.action == "skip":
            continue
        if job.arm not in sizes:
            sizes[job.arm] = _size(job.config)
        size = sizes[job.arm]
        saved = RunFolder(step.folder).checkpoint_bytes() if step.folder is not None else 0
        needed += max(size.kept - saved, 0)
        passing.append(size.most - size.kept)
    needed += sum(heapq.nlargest(at_once, passing))
    if not needed:
        return None
    existing = runs_dir.absolute()
    while not existing.exists():
        existing = existing.parent
    return needed, shutil.disk_usage(existing).free


def _size(config: Config) -> _Size:
    """Return the size of a training's checkpoints; 0 if unknown."""
    try:
        count = steps_of(config)
        model = on_disk(config.policy)
        one = make_trainer(config).checkpoint_bytes(config, model) if model else 0
    except HarnessError:  # the trainer may not be installed
        return _Size()
    if not count:
        return _Size()
    kept = min(config.train.keep_checkpoints, config.train.checkpoints_saved(count))
    return _Size(one * kept, one * config.train.checkpoints_at_once(count))


def checkpoint_advice(steps: Sequence[Step]) -> str:
    """Return the settings that save disk space in a study; empty if there are none."""
    kept = 0
    evaluates = False
    for step in steps:
        if step.action == "skip":
            continue
        evaluates = evaluates or step.job.kind == "eval"
        kept = max(kept, step.job.config.train.keep_checkpoints)
    # Evaluations need the last checkpoint.
    least = 1 if evaluates else 0
    return f"--set train.keep_checkpoints={least}" if kept > least else ""

"""The disk space that the checkpoints of a study's trainings take."""

from __future__ import annotations

import heapq
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from harness.errors import HarnessError
from harness.plugins import make_trainer
from harness.policies import resolve
from harness_study.timing import steps_of

if TYPE_CHECKING:
    from harness.config import Config
    from harness_study.state import Step


def checkpoint_space(steps: Sequence[Step], at_once: int, runs_dir: Path) -> tuple[int, int] | None:
    """Return the needed and the free disk space of trainings that start or are resumed.

    Trainings that keep no checkpoint need space only while they run, so the `at_once` largest
    count.

    Args:
        runs_dir: Parent of the study's folder; it may not exist yet.

    Returns:
        Bytes that are needed at least, and bytes that are free; None if no size is known.
    """
    kept = 0
    passing: list[int] = []
    # Trainings of an arm have the same size.
    sizes: dict[str, int] = {}
    for step in steps:
        job = step.job
        if job.kind != "train" or step.action == "skip":
            continue
        if job.arm not in sizes:
            sizes[job.arm] = _size(job.config)
        if job.config.train.keep_checkpoints:
            kept += sizes[job.arm]
        else:
            passing.append(sizes[job.arm])
    needed = kept + sum(heapq.nlargest(at_once, passing))
    if not needed:
        return None
    existing = runs_dir.absolute()
    while not existing.exists():
        existing = existing.parent
    return needed, shutil.disk_usage(existing).free


def _size(config: Config) -> int:
    """Return the bytes of a training's checkpoints; 0 if unknown."""
    try:
        count = steps_of(config)
        if count is None:
            return 0
        return make_trainer(config).checkpoint_bytes(config, resolve(config.policy.path), count)
    # The policy may not be on this machine yet, or the trainer may not be installed.
    except HarnessError:
        return 0

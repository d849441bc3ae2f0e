"""verl's checkpoints in a run's folder."""

from __future__ import annotations

import shutil
from pathlib import Path

from harness.errors import UserError
from harness.policies.weights import damage
from harness.runs.folder import RunFolder

MARKER = "latest_checkpointed_iteration.txt"
PREFIX = "global_step_"
UNFINISHED = "unfinished_rank_"
"""Prefix of the notes of workers that have not written all of their files yet (`saving.py`)."""


def checkpoints(folder: RunFolder) -> dict[int, Path]:
    """Return the complete checkpoints by step; verl resumes from the last one.

    Raises:
        UserError: verl's marker file, which names the last one, holds no number.
    """
    marker = folder.checkpoints / MARKER
    if not marker.is_file():
        return {}
    try:
        newest = int(marker.read_text())
    except ValueError as error:
        raise UserError(
            f"{marker} holds no step. Write the number of a folder {PREFIX}N into it"
        ) from error
    # verl leaves the folder of a removed checkpoint, without the weights.
    steps = {newest}
    for actor in folder.checkpoints.glob(f"{PREFIX}*/actor"):
        step = _step(actor.parent)
        if step is not None:
            steps.add(step)
    complete = {}
    for step in sorted(steps):
        # Later ones are half written: the marker follows once all files are there.
        if step <= newest:
            complete[step] = folder.checkpoints / f"{PREFIX}{step}"
    return complete


def drop_broken(folder: RunFolder) -> None:
    """Remove incompletely written checkpoints, which verl would neither use nor remove."""
    newest = max(checkpoints(folder), default=-1)
    for checkpoint in folder.checkpoints.glob(f"{PREFIX}*"):
        if checkpoint.name == f"{PREFIX}{newest}":
            continue
        # verl writes this file last, but a worker's thread may write its own files after it.
        whole = (checkpoint / "data.pt").exists()
        if not whole or any(checkpoint.glob(f"*/{UNFINISHED}*")):
            shutil.rmtree(checkpoint)


def _step(checkpoint: Path) -> int | None:
    """Return a checkpoint's step; None for other folders, such as a user's copy."""
    number = checkpoint.name.removeprefix(PREFIX)
    return int(number) if number.isdecimal() else None


def prune(folder: Path, kept: int) -> None:
    """Remove all whole checkpoints but the newest ones.

    verl knows only the checkpoints of its own launch, and leaves the rest of a folder whose weights
    it removes.

    Args:
        folder: The folder of a run's checkpoints.
        kept: Number to keep; 0: all.
    """
    marker = folder / MARKER
    if not kept or not marker.is_file():
        return
    newest = int(marker.read_text())
    steps: list[int] = []
    for checkpoint in folder.glob(f"{PREFIX}*"):
        step = _step(checkpoint)
        # Later ones are being written.
        if step is not None and step <= newest:
            steps.append(step)
    whole = [step for step in sorted(steps) if (folder / f"{PREFIX}{step}" / "actor").is_dir()]
    for step in set(steps).difference(whole[-kept:]):
        shutil.rmtree(folder / f"{PREFIX}{step}", ignore_errors=True)


def check(folder: RunFolder, checkpoint: Path) -> None:
    """Verify a checkpoint's checksums before torch loads it, since torch accepts changed weights.

    Raises:
        UserError: A file of it is missing or damaged; the message offers an older checkpoint.
    """
    for file in sorted({*checkpoint.rglob("*.pt"), checkpoint / "data.pt"}):
        if wrong := damage(file, every_byte=True):
            step = int(checkpoint.name.removeprefix(PREFIX))
            earlier = [number for number in checkpoints(folder) if number < step]
            older = max(earlier, default=None)
            advice = "There is no older checkpoint: copy it again, or start the training again"
            if older is not None:
                advice = (
                    f"Take the older one (--step {older}); to train on from it, write {older} into "
                )
                advice += str(folder.checkpoints / MARKER)
            raise UserError(f"{file} is damaged: {wrong}. {advice}")

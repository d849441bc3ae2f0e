"""Write checkpoints during training: copy to the host's memory, write the files, set the marker.

verl stops training until a checkpoint's files are written, half a minute for a model of 1.5 billion
parameters. Here a worker copies its state to the host's memory, which takes seconds, and a thread
of the worker writes the files that verl would have written. The trainer names the checkpoint in
verl's marker, and removes older ones, only after every worker has written its files. So the
checkpoint that the marker names is always complete, and a run resumes from it.

verl's option `actor.checkpoint.async_save` turns it on; it is off by default. verl 0.9.1 reads the
option in its trainer, which then does not write the marker, and in its Megatron workers.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, cast

import torch

from harness_verl.checkpoints import MARKER, PREFIX, UNFINISHED, prune
from harness_verl.host_copies import Copier, HostCopies
from harness_verl.host_memory import HostMemory

AFTER_FAILURE_S = 60.0
"""Seconds that a failing run waits for the files of its last checkpoint."""
FAILED = ".failed"
"""Suffix of a note about files that could not be written."""
LOOK_S = 0.1
"""Seconds between the trainer's checks whether workers have written their files."""

_save = torch.save


class Writer:
    """Writes one worker's files of one checkpoint after another, in a thread.

    Args:
        rank: The worker's number.
    """

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._thread: threading.Thread | None = None
        self._memory = HostMemory()
        self._copier = Copier()

    def prepare(self, states: Iterable[torch.Tensor]) -> None:
        """Get memory for the copies in advance, in a thread.

        Args:
            states: The tensors of a checkpoint; only their sizes count.
        """
        self._memory.prepare(states)

    @contextmanager
    def collecting(self, folder: Path) -> Iterator[None]:
        """Copy what `torch.save` gets inside the block, and write the copies afterwards.

        The folder holds a note until the files are written; after a failure the note has the error.

        Args:
            folder: Where verl saves this worker's files.
        """
        self.wait()  # its thread reads the memory that this checkpoint gets
        self._memory.begin()
        files: list[tuple[Any, Path]] = []

        def keep(value: Any, path: Any, *_: Any, **__: Any) -> None:
            copies = HostCopies(self._memory, self._copier)
            files.append((copies.of(value), Path(path)))
            copies.fill()

        folder.mkdir(parents=True, exist_ok=True)
        note = folder / f"{UNFINISHED}{self._rank}"
        note.touch()
        # verl's checkpoint manager takes the function from the module each time.
        torch.save = cast(Any, keep)
        try:
            yield
        finally:
            torch.save = _save
        self._thread = threading.Thread(
            target=_write,
            args=(files, note, self._memory),
            name="checkpoint-writer",
            daemon=True,
        )
        self._thread.start()

    def wait(self) -> None:
        """Wait until the files of the last checkpoint are written."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None


def _write(files: list[tuple[Any, Path]], note: Path, memory: HostMemory) -> None:
    """Write the files, and remove the note; a failure goes into the note."""
    try:
        while files:
            value, path = files.pop(0)
            _save(value, path)
            del value  # ordinary memory is free then
            with path.open("rb") as written:
                os.fsync(written.fileno())
        memory.end()
        note.unlink()
    except Exception as error:
        first_line = str(error).partition("\n")[0]
        with suppress(OSError):  # a full disk has no room for the text either
            note.write_text(f"{type(error).__name__}: {first_line}", encoding="utf-8")
        note.rename(note.with_name(f"{note.name}{FAILED}"))


class Completion:
    """Names checkpoints in verl's marker once their files are complete; one instance a trainer.

    Args:
        folder: Where the checkpoints are.
        kept: Number of complete checkpoints to keep; None or 0: all.
    """

    def __init__(self, folder: Path, kept: int | None) -> None:
        self._folder = folder
        self._kept = kept or 0
        self._pending: int | None = None

    def begin(self, step: int) -> None:
        """Note the step of the checkpoint that is being written."""
        self._pending = step

    def look(self) -> None:
        """Name the pending checkpoint in the marker if it is complete by now.

        Raises:
            RuntimeError: A worker could not write its files.
        """
        if self._pending is None:
            return
        checkpoint = self._folder / f"{PREFIX}{self._pending}"
        for note in checkpoint.glob(f"*/{UNFINISHED}*"):
            if note.suffix != FAILED:
                continue
            reason = note.read_text(encoding="utf-8") or "the disk may be full"
            raise RuntimeError(f"the checkpoint of step {self._pending} was not written: {reason}")
        if any(checkpoint.glob(f"*/{UNFINISHED}*")):
            return
        marker = self._folder / MARKER
        replacement = marker.with_suffix(".new")
        replacement.write_text(str(self._pending))
        replacement.replace(marker)
        self._pending = None
        self.prune()

    def make_room(self) -> None:
        """Remove the oldest checkpoints before another one is written, unless one is kept.

        verl does so with the checkpoints of its own launch, but not with those of earlier ones.
        """
        if self._kept > 1:
            prune(self._folder, self._kept - 1)

    def prune(self) -> None:
        """Remove older checkpoints, those of earlier launches included."""
        prune(self._folder, self._kept)

    def finish(self) -> None:
        """Wait until the pending checkpoint is complete.

        Raises:
            RuntimeError: As `look`.
        """
        self._wait(math.inf)

    def wait(self, most_s: float) -> None:
        """Wait at most `most_s` seconds for the pending checkpoint when the run fails anyway."""
        with suppress(RuntimeError):
            self._wait(most_s)

    def _wait(self, most_s: float) -> None:
        ends = time.monotonic() + most_s
        self.look()
        while self._pending is not None and time.monotonic() < ends:
            time.sleep(LOOK_S)
            self.look()


def install(trainer: Any) -> None:
    """Have verl's trainer complete checkpoints that are written while it trains.

    Args:
        trainer: verl's `PPOTrainer`.
    """
    save, step, fit = trainer._save_checkpoint, trainer.step, trainer.fit

    def save_checkpoint(self: Any) -> None:
        completion = _completion(self)
        if not self.config.actor_rollout_ref.actor.get("checkpoint", {}).get("async_save", False):
            completion.make_room()
            save(self)
            completion.prune()
            return
        completion.finish()
        completion.make_room()
        save(self)
        completion.begin(self.global_steps)

    def checked_step(self: Any, *arguments: Any, **options: Any) -> Any:
        _completion(self).look()
        return step(self, *arguments, **options)

    def completed_fit(self: Any, *arguments: Any, **options: Any) -> Any:
        try:
            found = fit(self, *arguments, **options)
        except Exception:
            # If a validation fails after its step's checkpoint, a run can resume from the latter.
            _completion(self).wait(AFTER_FAILURE_S)
            raise
        _completion(self).finish()
        return found

    trainer._save_checkpoint = save_checkpoint
    trainer.step = checked_step
    trainer.fit = completed_fit


def _completion(trainer: Any) -> Completion:
    """Return the one instance of a trainer."""
    found: Completion | None = getattr(trainer, "_harness_completion", None)
    if found is None:
        settings = trainer.config.trainer
        folder = Path(settings.default_local_dir)
        found = Completion(folder, settings.get("max_actor_ckpt_to_keep", None))
        trainer._harness_completion = found
    return found

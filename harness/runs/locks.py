"""Locks of folders: one process writes a run or a study at a time."""

from __future__ import annotations

import fcntl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from harness.errors import UserError

CHECKED_S = 0.5
"""Seconds that a lock may be busy by checks before it counts as held."""


@contextmanager
def held(folder: Path, busy: str = "") -> Iterator[None]:
    """Create a folder if missing and lock it through its `.lock`.

    Args:
        busy: Message if another process holds the lock; empty: wait for it.

    Raises:
        UserError: Another process holds the lock and `busy` is set, or the folder cannot be
            written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / ".lock").open("w")
    except OSError as error:
        raise UserError(f"cannot write {folder}: {error.strerror}") from error
    with lock:
        _lock(lock, busy)
        yield


def _lock(lock: IO[str], busy: str) -> None:
    """Take an exclusive lock; the arguments and errors are those of `held`."""
    if not busy:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return
    # A reader that checks who holds the lock has it for a moment.
    ends = time.monotonic() + CHECKED_S
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except OSError as error:
            if time.monotonic() >= ends:
                raise UserError(busy) from error
        time.sleep(0.02)


def is_held(folder: Path) -> bool:
    """Return whether a process of this machine holds the lock of a folder.

    The check takes a shared lock for a moment, so that checks do not exclude each other.
    """
    try:
        with (folder / ".lock").open() as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return False

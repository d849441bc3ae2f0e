"""Run executions concurrently, and exclusively after one ran out of memory.

SQLite counts its heap for the whole process, so that a query may fail because of memory that other
queries hold. A query that runs out of memory is retried exclusively: if it fails again, the query
itself is the cause. Standard library only.
"""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Gate:
    """Admit many executions at a time, or one exclusively.

    After an exclusive execution, the gate stays open to others for the same duration, so that they
    get
    at least half of the time.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition(threading.Lock())
        self._inside = 0
        self._closed = False
        self._open_until = 0.0

    @contextmanager
    def sharing(self) -> Iterator[None]:
        """Wait until no execution is exclusive or waiting to be, then enter."""
        with self._changed:
            while self._closed:
                self._changed.wait()
            self._inside += 1
        try:
            yield
        finally:
            with self._changed:
                self._inside -= 1
                if self._closed and not self._inside:
                    self._changed.notify_all()

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Wait until no execution is inside. The wait ends, since each has a deadline."""
        with self._changed:
            while self._closed or time.monotonic() < self._open_until:
                self._changed.wait(None if self._closed else self._open_until - time.monotonic())
            self._closed = True
            while self._inside:
                self._changed.wait()
        started = time.monotonic()
        try:
            yield
        finally:
            with self._changed:
                self._closed = False
                self._open_until = 2 * time.monotonic() - started
                self._changed.notify_all()


def _trimmer() -> Callable[[int], object]:
    try:
        return ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError):  # not glibc
        return lambda _: None


_malloc_trim = _trimmer()


def return_memory() -> None:
    """Return freed memory to the system. By default, glibc keeps it for the same thread."""
    _malloc_trim(0)

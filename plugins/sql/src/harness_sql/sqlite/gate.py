"""Executions beside each other, and one at a time where memory ran out.

SQLite counts its heap for the whole process, so a query may fail because of what others hold. Whoever failed for
want of memory runs once more while nothing else does: what fails then is to blame itself. Standard library only.
"""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Gate:
    """Lets many in beside each other, or one alone.

    Whoever was alone leaves the gate open to others for as long, so that they have half of the time at least.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition(threading.Lock())
        self._inside = 0
        self._closed = False
        self._open_until = 0.0

    @contextmanager
    def beside(self) -> Iterator[None]:
        """Waits until nobody is alone or about to be."""
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
        """Waits until nobody is inside; every execution has a deadline, so this ends."""
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
    """Gives freed memory back to the system: glibc would keep what each thread once used for that thread alone."""
    _malloc_trim(0)

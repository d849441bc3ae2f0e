"""Event loops inside a running one: a notebook's loop runs in the thread that executes a cell."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from harness.runs.folder import endings


@contextmanager
def own_loop() -> Iterator[None]:
    """Allow event loops here, also inside another one, which waits as for any other call.

    A thread is no alternative, since only the main thread receives Ctrl-C. asyncio offers
    `_set_running_loop` to loops for this.
    """
    outer = asyncio._get_running_loop()
    if outer is None:
        yield
        return
    main = threading.current_thread() is threading.main_thread()
    wakeup = signal.set_wakeup_fd(-1) if main else -1
    asyncio._set_running_loop(None)
    try:
        yield
    finally:
        asyncio.set_event_loop(outer)
        asyncio._set_running_loop(outer)
        if main:
            signal.set_wakeup_fd(wakeup)


def interrupt(number: int, frame: FrameType | None) -> None:
    """Handle a signal like Ctrl-C."""
    raise KeyboardInterrupt


@contextmanager
def interruptible() -> Iterator[None]:
    """Treat SIGTERM and SIGHUP like Ctrl-C, so that children end and files are complete.

    Only the main thread can be interrupted. `nohup` still holds.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, interrupt) for number in endings()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)

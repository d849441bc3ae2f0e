"""The event loop of who calls: a notebook's runs in the very thread that a cell is executed in."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from harness.results.folder import endings


@contextmanager
def own_loop() -> Iterator[None]:
    """Let event loops be run here, also inside another one, which waits meanwhile as for any other call.

    Not a thread: only the main one is told of Ctrl-C. `_set_running_loop` is what asyncio offers to loops for this.
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
    """Handles a signal as Ctrl-C."""
    raise KeyboardInterrupt


@contextmanager
def interruptible() -> Iterator[None]:
    """SIGTERM and SIGHUP are as Ctrl-C meanwhile: what was started ends, and what was written stays whole.

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

"""Trace the start of a run: the work of each process until its first useful act.

`harness train --trace-start FILE` names a file in the environment of every process; each adds its
events, lines of a Chrome trace (chrome://tracing, https://ui.perfetto.dev). Without the option
nothing is traced.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from harness.errors import ConfigError
from harness.util import clock

VARIABLE = "HARNESS_TRACE_START"


@contextmanager
def recorded(file: Path) -> Iterator[None]:
    """Trace this process and its children to `file`, which becomes valid JSON in order of time."""
    try:
        file.write_text("[\n", encoding="utf-8")
    except OSError as error:
        raise ConfigError(
            f"--trace-start {file}: cannot write there ({error.strerror}). Name another file"
        ) from error
    os.environ[VARIABLE] = str(file.resolve())
    try:
        yield
    finally:
        os.environ.pop(VARIABLE, None)
        lines = file.read_text(encoding="utf-8").splitlines()[1:]
        events = []
        for line in lines:
            with suppress(ValueError):  # the last line of a process that was killed during a write
                events.append(json.loads(line.removesuffix(",")))
        events.sort(key=lambda event: event["ts"])
        file.write_text(json.dumps(events, ensure_ascii=False, indent=0), encoding="utf-8")


def born(process: str) -> None:
    """Name this process, and record the time since its creation."""
    if not _first(process):
        return
    now, began = clock.now(), _created()
    _write(name="process_name", ph="M", ts=0, args={"name": process})
    if began is not None:
        _write(name="Python and imports", ph="X", ts=_us(began), dur=_us(now - began))


@contextmanager
def span(name: str) -> Iterator[None]:
    """Trace a `with` block."""
    if VARIABLE not in os.environ:
        yield
        return
    began = clock.now()
    try:
        yield
    finally:
        _write(name=name, ph="X", ts=_us(began), dur=_us(clock.now() - began))


def mark(name: str) -> None:
    """Trace the first time that this process reaches a point."""
    if _first(name):
        _write(name=name, ph="i", s="p", ts=_us(clock.now()))


_traced: set[tuple[int, str]] = set()


def _first(what: str) -> bool:
    """Return whether this process, which may be a fork, traces an event for the first time."""
    if VARIABLE not in os.environ or (os.getpid(), what) in _traced:
        return False
    _traced.add((os.getpid(), what))
    return True


def _write(**event: Any) -> None:
    line = json.dumps({**event, "pid": os.getpid(), "tid": 0}, ensure_ascii=False) + ",\n"
    # One write keeps the line whole.
    with (
        suppress(OSError),
        open(os.environ[VARIABLE], "ab", buffering=0) as file,
    ):
        file.write(line.encode())


def _us(seconds: float) -> int:
    return round(seconds * 1e6)


def _created() -> float | None:
    """Return the creation time of this process in seconds since 1970 (Linux), else None."""
    with suppress(OSError, ValueError, IndexError, AttributeError):
        ticks = int(
            Path("/proc/self/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[19]
        )
        uptime = time.clock_gettime(time.CLOCK_BOOTTIME)
        return clock.now() - uptime + ticks / os.sysconf("SC_CLK_TCK")
    return None

"""Where the time of a start goes: what each process of a run does until its first useful act.

`harness train --trace-start FILE` names a file in the environment of every process; each adds its events, lines of a
Chrome trace (chrome://tracing, https://ui.perfetto.dev). Without it nothing here does anything.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from harness import clock
from harness.errors import ConfigError

VARIABLE = "HARNESS_TRACE_START"


@contextmanager
def recorded(file: Path) -> Iterator[None]:
    """Have this process and those it starts write to `file`; afterwards it is whole JSON, in order of time."""
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
            with suppress(ValueError):  # of a process that was killed while it wrote
                events.append(json.loads(line.removesuffix(",")))
        events.sort(key=lambda event: event["ts"])
        file.write_text(json.dumps(events, ensure_ascii=False, indent=0), encoding="utf-8")


def born(process: str) -> None:
    """Call this process by a name, and say how long it took from its creation to here."""
    if not _first(process):
        return
    now, began = clock.now(), _created()
    _write(name="process_name", ph="M", ts=0, args={"name": process})
    if began is not None:
        _write(name="Python and imports", ph="X", ts=_us(began), dur=_us(now - began))


@contextmanager
def span(name: str) -> Iterator[None]:
    """What this process does in a `with` block."""
    if VARIABLE not in os.environ:
        yield
        return
    began = clock.now()
    try:
        yield
    finally:
        _write(name=name, ph="X", ts=_us(began), dur=_us(clock.now() - began))


def mark(name: str) -> None:
    """The first time that this process comes here."""
    if _first(name):
        _write(name=name, ph="i", s="p", ts=_us(clock.now()))


_said: set[tuple[int, str]] = set()


def _first(what: str) -> bool:
    """Whether this process, which may be a fork, has not said so yet and is to say it."""
    if VARIABLE not in os.environ or (os.getpid(), what) in _said:
        return False
    _said.add((os.getpid(), what))
    return True


def _write(**event: Any) -> None:
    line = json.dumps({**event, "pid": os.getpid(), "tid": 0}, ensure_ascii=False) + ",\n"
    with (
        suppress(OSError),
        open(os.environ[VARIABLE], "ab", buffering=0) as file,
    ):  # one write: lines stay whole
        file.write(line.encode())


def _us(seconds: float) -> int:
    return round(seconds * 1e6)


def _created() -> float | None:
    """When the kernel made this process, seconds since 1970 (Linux)."""
    with suppress(OSError, ValueError, IndexError, AttributeError):
        ticks = int(
            Path("/proc/self/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[19]
        )
        uptime = time.clock_gettime(time.CLOCK_BOOTTIME)
        return clock.now() - uptime + ticks / os.sysconf("SC_CLK_TCK")
    return None

"""Child processes that never outlive their parent, and a sweep for anything that tries."""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

RUN_MARK = "HARNESS_RUN_MARK"
"""Environment variable that every process of a run inherits; its value is the run's id."""
PARENT = "HARNESS_PARENT"
"""Environment variable with the process id of the parent, for `die_with_parent`."""
_NO_MORE = re.compile(
    r"can't start new thread|pthread_create failed|Thread creation failed|BlockingIOError: \[Errno 11\]"
    r"|what\(\): +Resource temporarily unavailable"
)
"""Messages of Python, OpenBLAS, OpenMP and C++ if the kernel allows no further thread or
process."""


def starved(output: str) -> str:
    """Return advice if a message shows a lack of threads or processes; empty otherwise."""
    if not _NO_MORE.search(output):
        return ""
    limit, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    most = "" if limit == resource.RLIM_INFINITY else f", here {limit} for all of this user's"
    return (
        f"no further thread or process can be started: "
        f"raise the limit (ulimit -u{most}, or the container's)"
    )


def die_with_parent(number: int = signal.SIGKILL) -> None:
    """Ask the kernel to signal this process when its parent dies (Linux; elsewhere nothing).

    The process is signalled at once if the one that the variable `PARENT` names has ended before
    this call, for example during imports.
    """
    # Processes that this one starts have another parent.
    named = os.environ.pop(PARENT, "")
    if sys.platform.startswith("linux"):
        parent = os.getppid()
        ctypes.CDLL(None, use_errno=True).prctl(1, number)  # PR_SET_PDEATHSIG
        ended = named.isdecimal() and not _runs(int(named))
        if ended or os.getppid() != parent:  # the parent died before the request
            os.kill(os.getpid(), number)


def _runs(number: int) -> bool:
    try:
        return psutil.Process(number).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def marked(mark: str) -> list[psutil.Process]:
    """Yield this user's other processes that carry the mark."""
    processes = []
    for process in psutil.process_iter():
        if process.pid == os.getpid():
            continue
        with contextlib.suppress(psutil.Error, OSError):
            if mark == _mark_of(process):
                processes.append(process)
    return processes


def _mark_of(process: psutil.Process) -> str | None:
    if not sys.platform.startswith("linux"):
        return process.environ().get(RUN_MARK)
    # psutil reads to the first gap, and a process that gave itself a title, as Ray's do, has one at
    # the very beginning.
    variables = Path(f"/proc/{process.pid}/environ").read_bytes().split(b"\0")
    start = f"{RUN_MARK}=".encode()
    for variable in variables:
        if variable.startswith(start):
            return os.fsdecode(variable[len(start) :])
    return None


def mark_place() -> int:
    """Where in memory this process carries the mark that it was started with.

    Call it before any variable is set.
    """
    getenv = ctypes.CDLL(None).getenv
    getenv.restype = ctypes.c_void_p
    place: int | None = getenv(RUN_MARK.encode())
    return place or 0


def carry_mark(mark: str, place: int, room: int) -> None:
    """Make `marked` find this process by another mark, although the kernel shows the old one.

    Raises:
        ValueError: The mark is longer than the one that it was started with.
    """
    if not place or len(mark.encode()) > room:
        raise ValueError(f"there is no room for the mark {mark!r}")
    ctypes.memmove(place, mark.encode().ljust(room, b"\0"), room)


def sweep(mark: str, grace_s: float = 3.0) -> int:
    """End every process that carries the mark: SIGTERM, a grace period, SIGKILL.

    Returns how many were left.
    """
    left = marked(mark)
    total = len(left)
    for process in left:
        _signal(process, signal.SIGTERM)
    deadline = time.monotonic() + grace_s
    while left and time.monotonic() < deadline:
        psutil.wait_procs(left, timeout=0.2)
        left = marked(mark)
    while left and time.monotonic() < deadline + 10:
        for process in left:
            _signal(process, signal.SIGKILL)
        psutil.wait_procs(left, timeout=0.5)
        left = marked(mark)
    return total


@contextlib.contextmanager
def no_orphans() -> Iterator[None]:
    """End escaped descendants that the block started, with their own environment and session.

    On Linux this process becomes the parent of orphaned descendants. Earlier children are spared,
    and so are processes of the same session, which their starters end.
    """
    if not sys.platform.startswith("linux"):
        yield
        return
    prctl, was = ctypes.CDLL(None, use_errno=True).prctl, ctypes.c_int()
    prctl(37, ctypes.byref(was))  # PR_GET_CHILD_SUBREAPER
    before = set(psutil.Process().children())
    prctl(36, 1)  # PR_SET_CHILD_SUBREAPER
    try:
        yield
    finally:
        # Their orphans become children of this process, and the next pass ends them.
        while left := _new_children(before):
            for process in left:
                _signal(process, signal.SIGKILL)
            psutil.wait_procs(left, timeout=1.0)
        prctl(36, was.value)


def _new_children(before: set[psutil.Process]) -> list[psutil.Process]:
    """Return this process's children in sessions of their own that are not among those before."""
    children = psutil.Process().children()
    return [child for child in children if child not in before and _apart(child)]


def _apart(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.Error, OSError):
        return os.getsid(process.pid) != os.getsid(0)
    return False


def _signal(process: psutil.Process, number: int) -> None:
    with contextlib.suppress(psutil.Error, OSError):
        process.send_signal(number)


def end_group(leader: int) -> None:
    """Kill a process group except its leader, including processes that overwrote their mark.

    Ray's agents overwrite it with a title.
    """
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.pid != leader and os.getpgid(process.pid) == leader:
                process.kill()


def end_session(leader: int) -> None:
    """Kill the processes of a session. Its leader may have ended."""
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if os.getsid(process.pid) == leader:
                process.kill()


def stop_process(process: subprocess.Popen[bytes], grace_s: float = 4.0) -> None:
    """End a child: SIGTERM, a grace period, SIGKILL. Safe when it has ended."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(grace_s)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

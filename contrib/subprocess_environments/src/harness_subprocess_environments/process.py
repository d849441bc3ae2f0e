"""A subprocess that answers one JSON object per line, with typed faults."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import subprocess
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import IO, Any, Generic, TypeVar, cast

from harness import EnvironmentFault
from harness.rollout.processes import RUN_MARK

Answer = TypeVar("Answer", bound=Mapping[str, Any])
Process = TypeVar("Process", bound="Subprocess[Any]")
MAX_BYTES = 4 << 20
"""Most bytes of one line from a subprocess. A longer line is discarded and ends the process."""
INHERITED = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", RUN_MARK)
"""Environment variables that a subprocess inherits; none of them holds a key."""
OURS = ("PYTHONPATH", "VIRTUAL_ENV")
"""Further inherited variables if it uses this process's interpreter."""


class Subprocess(Generic[Answer]):
    """One subprocess, usable from any thread or event loop; it ends with its owner.

    Each request gets an `id`, which its answer repeats. An answer with `fault` states an error and
    nothing else.

    Args:
        command: Command line of the process.
        name: Name in messages about its faults.
        inherited: Names of the environment variables that it inherits.

    Attributes:
        why: Why it has ended; empty while it runs.

    Raises:
        OSError: It does not start.
    """

    def __init__(
        self, command: Sequence[str], name: str, inherited: Sequence[str] = INHERITED
    ) -> None:
        self.name = name
        self._process = subprocess.Popen(
            list(command),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={key: os.environ[key] for key in inherited if key in os.environ},
        )
        self.why = ""
        self._numbers = itertools.count()
        self._waiting: dict[int, Future[Answer]] = {}
        self._lock, self._writing = threading.Lock(), threading.Lock()
        self._last = [""]
        process, itself = self._process, weakref.ref(self)
        assert process.stdout is not None and process.stderr is not None
        self._listening = threading.Thread(
            target=_listen, args=(process.stderr, self._last), daemon=True
        )
        self._listening.start()
        threading.Thread(target=_read, args=(process.stdout, itself), daemon=True).start()
        weakref.finalize(self, _end, process)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def gone(self) -> bool:
        """Return whether it has ended for any reason."""
        return bool(self.why) or self._process.poll() is not None

    def send(self, request: Mapping[str, object]) -> Future[Answer]:
        """Send a request and return the future answer.

        Raises:
            EnvironmentFault: The process has ended. If it ends later, the future raises this.
        """
        number, answer = next(self._numbers), Future[Answer]()
        with self._lock:
            if self.why:
                raise self._fault()
            self._waiting[number] = answer
        line = json.dumps({**request, "id": number}).encode() + b"\n"
        assert self._process.stdin is not None
        try:
            with self._writing:
                self._process.stdin.write(line)
                self._process.stdin.flush()
        except (OSError, ValueError):
            self.end("it does not read its input")
        return answer

    async def ask(self, limit_s: float, request: Mapping[str, object]) -> Answer:
        """Return the answer to a request. After a cancellation the answer is ignored.

        Raises:
            EnvironmentFault: There is no answer within the limit, which ends the process.
        """
        answer = await asyncio.to_thread(self.send, request)
        try:
            async with asyncio.timeout(limit_s):
                return _checked(await asyncio.wrap_future(answer), self.name)
        except TimeoutError:
            self.end(f"it did not answer within {limit_s:g} s")
            raise self._fault() from None

    def wait(self, limit_s: float, request: Mapping[str, object]) -> Answer:
        """Return the answer like `ask`, without an event loop."""
        return self.receive(self.send(request), limit_s)

    def receive(self, answer: Future[Answer], limit_s: float) -> Answer:
        """Return the answer to an earlier request.

        Raises:
            EnvironmentFault: It does not arrive within the limit, which ends the process, or it
                states a fault.
        """
        try:
            return _checked(answer.result(limit_s), self.name)
        except TimeoutError:
            self.end(f"it did not answer within {limit_s:g} s")
            raise self._fault() from None

    def end(self, why: str) -> None:
        """End the process. Every pending request gets a fault."""
        with self._lock:
            self.why = self.why or why
            waiting, self._waiting = self._waiting, {}
        self._process.kill()
        self._process.wait()
        self._listening.join(1.0)
        for answer in waiting.values():
            if answer.set_running_or_notify_cancel():
                answer.set_exception(self._fault())

    def take(self, line: bytes) -> bool:
        """Pass an answer to its request; return whether another one may follow."""
        try:
            answer = cast(Answer, json.loads(line))
            number = answer["id"]
        except (ValueError, KeyError, TypeError, RecursionError):
            self.end(f"it wrote {line[:80]!r}" if line else "it ended")
            return False
        with self._lock:
            pending = self._waiting.pop(number, None)
        if pending is not None and pending.set_running_or_notify_cancel():
            pending.set_result(answer)
        return True

    def _fault(self) -> EnvironmentFault:
        output = f" (last stderr line: {self._last[0]})" if self._last[0] else ""
        return EnvironmentFault(f"{self.name}: {self.why}{output}")


class Pool(Generic[Process]):
    """Subprocesses of one kind, each with a bounded number of sessions.

    Args:
        start: Start one process.
        name: Name in messages if none starts.
        sessions: Most attempts that share a process. Their calls may wait for each other, and end
            together if it ends.
    """

    def __init__(self, start: Callable[[], Process], name: str, sessions: int) -> None:
        self._start, self._name, self._most = start, name, sessions
        self._lock = threading.Lock()
        self._sessions: dict[Process, int] = {}

    def get(self) -> Process:
        """Return a process with room for one more session, and reserve it; start one if needed.

        Raises:
            EnvironmentFault: No process can be started.
        """
        with self._lock:
            process: Process | None = None
            alive: dict[Process, int] = {}
            for running, count in self._sessions.items():
                # A process that is gone has lost its sessions, so it takes no new one either.
                if running.gone:
                    continue
                alive[running] = count
                if process is None and count < self._most:
                    process = running
            self._sessions = alive
            if process is None:
                try:
                    process = self._start()
                except OSError as error:
                    raise EnvironmentFault(f"{self._name} does not start: {error}") from error
            self._sessions[process] = self._sessions.get(process, 0) + 1
        return process

    def leave(self, process: Process) -> None:
        """Release one session of a process."""
        with self._lock:
            if process in self._sessions:
                self._sessions[process] -= 1


def _checked(answer: Answer, name: str) -> Answer:
    """Return an answer without a fault.

    Raises:
        EnvironmentFault: The answer states a fault.
    """
    if "fault" in answer:
        raise EnvironmentFault(f"{name}: {answer['fault']}")
    return answer


def _read(stdout: IO[bytes], itself: weakref.ref[Subprocess[Any]]) -> None:
    """Pass answers on until the output ends or the process object is gone."""
    with stdout:
        while True:
            line = stdout.readline(MAX_BYTES)
            process = itself()
            if process is None or not process.take(line):
                return
            del process


def _listen(stderr: IO[bytes], last: list[str]) -> None:
    """Keep the last line on stderr, which usually states why the process ended."""
    with stderr:
        while line := stderr.readline(1 << 12):
            last[0] = line.decode(errors="replace").strip()[-300:] or last[0]


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
    if process.stdin is not None:
        with contextlib.suppress(OSError):
            process.stdin.close()

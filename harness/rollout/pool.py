"""Keep worker processes alive: start them, detect dead and stuck ones, return their rollouts."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from harness.contracts.queue import Queue, runner_name
from harness.errors import EndpointError, RunFailed, last_line
from harness.gateway.client import GatewayControl
from harness.rollout.blocking_rollouts import STATUS, settle
from harness.rollout.host import UnderWay
from harness.rollout.processes import PARENT
from harness.rollout.worker import WorkerSettings

logger = logging.getLogger(__name__)

STALL_GRACE_S = 30.0
"""Seconds after the rollout timeout until a worker with a blocked event loop is killed."""
START_S = 600.0
"""Seconds after which a worker that has not imported its agent counts as stuck, too."""
MAX_RESTARTS = 5
"""Most restarts of workers that ended for an unknown reason."""
ENDED_BY_ITSELF = (signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGFPE, signal.SIGILL)
"""Signals that a process causes itself, unlike SIGKILL, which an operator sends, or the kernel when
memory is full.
"""
LOG_BYTES = 16 * 2**20
"""Most bytes of a worker's log, which includes all output of its agent."""
MAX_FALSE_STARTS = 2
"""Consecutive workers that may end before they are ready to take a rollout."""


@dataclass
class Worker:
    """A worker process.

    Attributes:
        heartbeat: File that it touches about once a second once it takes rollouts.
    """

    number: int
    process: subprocess.Popen[bytes]
    heartbeat: Path
    careful: bool
    """Whether it takes one rollout at a time, so that a rollout which ends it can be identified."""
    beat: int | None = None
    """The last heartbeat; None before the first."""
    since: float = field(default_factory=time.monotonic)
    """When `beat` was first seen, by the monotonic clock."""

    @property
    def id(self) -> str:
        """Its name in the queue."""
        return runner_name(self.number)


class WorkerPool:
    """Worker processes of one plugin.

    Args:
        settings: Builds the settings of worker `number` with its heartbeat file.
        log_dir: Where `runner-N.log` goes.
        python: The interpreter, for a plugin with an environment of its own.
        first: Number of the first worker; no two workers of a run may share one.
    """

    def __init__(
        self,
        count: int,
        settings: Callable[[int, Path], WorkerSettings],
        log_dir: Path,
        timeout_s: float,
        python: str = sys.executable,
        first: int = 0,
    ) -> None:
        self._count = count
        self._settings = settings
        self._log_dir = log_dir
        self._stall_s = timeout_s + STALL_GRACE_S
        self._python = python
        self._workers: list[Worker] = []
        self._next = first
        self.restarts = 0
        self._false_starts = 0

    def start(self) -> list[str]:
        """Start all workers.

        Returns at once, with the names under which they will ask for rollouts.
        """
        self._log_dir.mkdir(parents=True, exist_ok=True)
        self._workers = [self._spawn() for _ in range(self._count)]
        return self.ids()

    def ids(self) -> list[str]:
        """The names of the existing workers."""
        return [worker.id for worker in self._workers]

    def workers(self) -> list[Worker]:
        """Return the workers that exist."""
        return list(self._workers)

    def _spawn(self, careful: bool = False) -> Worker:
        number, self._next = self._next, self._next + 1
        heartbeat = self._log_dir / f".runner-{number}.alive"
        heartbeat.unlink(missing_ok=True)  # left by a launch that was killed
        log = (self._log_dir / f"runner-{number}.log").open("ab")
        environment = {**os.environ, "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
        environment[PARENT] = str(os.getpid())
        # Frameworks read the environment, so pass only what the worker needs.
        environment.pop("HARNESS_STORE_KEY", None)
        process = subprocess.Popen(
            [self._python, "-m", "harness.rollout.worker"],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            env=environment,
        )
        log.close()
        assert process.stdin is not None
        settings = self._settings(number, heartbeat)
        if careful:
            settings = replace(settings, concurrency=1)
        process.stdin.write(settings.dump().encode() + b"\n")
        process.stdin.close()
        return Worker(number, process, heartbeat, careful)

    async def watch(self, queue: Queue, control: GatewayControl) -> None:
        """Replace dead and stuck workers until cancelled.

        A rollout is the agent's failure if the agent ended the worker: the worker reported it
        (`blocking_rollouts.py`), or it had only this rollout, as workers do after an unexplained
        end.

        Raises:
            RunFailed: Workers keep dying for an unknown reason; the message names the log.
        """
        while True:
            await asyncio.sleep(0.5)
            for position, worker in enumerate(self._workers):
                _shorten(self._log(worker))
                reason = self._problem(worker)
                if reason is None:
                    continue
                logger.warning("runner %d %s", worker.number, reason)
                status = worker.process.returncode
                ended_itself = status >= 0 or -status in ENDED_BY_ITSELF
                explained = status == STATUS
                # A careful worker has one rollout at a time, so that rollout ended it.
                if worker.careful and ended_itself and not explained:
                    explained = await _settle_lost(queue, control, worker.id, reason)
                await queue.hand_back(worker.id, reason)
                # Without a heartbeat it never became ready, and a replacement would end in the same
                # way.
                self._false_starts = 0 if worker.heartbeat.exists() else self._false_starts + 1
                worker.heartbeat.unlink(missing_ok=True)
                if self.restarts >= MAX_RESTARTS or self._false_starts >= MAX_FALSE_STARTS:
                    log = self._log(worker)
                    last = last_line(log.read_text(errors="replace"))[:300]
                    raise RunFailed(f"runners keep dying ({reason}): {last} (whole log: {log})")
                self.restarts += not explained
                self._workers[position] = self._spawn(careful=ended_itself and not explained)

    def _log(self, worker: Worker) -> Path:
        return self._log_dir / f"runner-{worker.number}.log"

    def _problem(self, worker: Worker) -> str | None:
        status = worker.process.poll()
        if status is not None:
            return f"ended with status {status}"
        beat, now = None, time.monotonic()
        with suppress(FileNotFoundError):  # still importing
            beat = worker.heartbeat.stat().st_mtime_ns
        # Times of files jump with the machine's clock, so use the monotonic clock of this process.
        if beat != worker.beat:
            worker.beat, worker.since = beat, now
        silent_s = now - worker.since
        if silent_s > (START_S if beat is None else self._stall_s):
            worker.process.kill()
            worker.process.wait()
            return f"was stuck for {silent_s:.0f} s and was killed"
        return None

    def stop(self, grace_s: float = 3.0) -> None:
        """End all workers: SIGTERM, a grace period, SIGKILL."""
        for worker in self._workers:
            if worker.process.poll() is None:
                worker.process.terminate()
        # All got SIGTERM first, so that they share the grace period.
        deadline = time.monotonic() + grace_s
        for worker in self._workers:
            try:
                worker.process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                worker.process.kill()
                worker.process.wait()
            worker.heartbeat.unlink(missing_ok=True)
            _shorten(self._log(worker))
        self._workers = []


def _shorten(log: Path) -> None:
    """Leave out the middle of a log that has grown too long.

    Its worker may go on appending to it.
    """
    part = LOG_BYTES // 4
    with log.open("rb") as file:
        if os.fstat(file.fileno()).st_size <= LOG_BYTES:
            return
        file.seek(-part, os.SEEK_END)
        end = file.read(part)
    os.truncate(log, part)
    with log.open("ab") as file:
        file.write(
            f"\nharness: part of this log is left out here: it passed {LOG_BYTES // 2**20} MiB\n".encode()
            + end
        )


async def _settle_lost(queue: Queue, control: GatewayControl, worker_id: str, reason: str) -> bool:
    """Record the only rollout of a lost worker as its agent's failure.

    Returns False if the worker had none or several.
    """
    lost = await queue.held(worker_id)
    if len(lost) != 1:
        return False
    (held,) = lost
    timeout_s = float(held.request["timeout_s"])
    under_way = UnderWay(held.rollout_id, held.attempt_id, timeout_s, held.started_s)
    try:
        await settle(queue, control, under_way, "agent_error", f"the agent's process {reason}")
    except (EndpointError, RuntimeError):  # the attempt was not open yet, or is closed already
        return False
    return True

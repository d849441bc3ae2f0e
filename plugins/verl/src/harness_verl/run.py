"""Run a verl process together with the rollout services that feed it, for as long as it trains."""

from __future__ import annotations

import asyncio
import logging
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from harness.errors import RunFailed
from harness.rollout.processes import starved, stop_process
from harness.rollout.stack import RolloutWork
from harness_policy_server.vllm_log import start_failure
from harness_verl.driver import OURS
from harness_verl.names import LOG, LOST_FILE, WARNS
from harness_verl.shared import SessionFile

if TYPE_CHECKING:
    from harness.contracts.queue import Queue
    from harness.contracts.trainers import LiveRun

logger = logging.getLogger(__name__)
POLL_S = 0.25
CAUSE_S = 4.0
"""Seconds in which the driver must name the cause of failed rollouts; it polls Ray each second."""


class VerlRun(RolloutWork):
    """Gives verl's processes the services' addresses, follows the run, and ends with it.

    Args:
        driver: The process in which verl runs, already started.
        session_file: File in which verl's processes find the services once they need them.
        begins: Offset in verl's log at which this launch begins.
        scratch: Folder of Ray's temporary files.
    """

    def __init__(
        self,
        run: LiveRun,
        mark: str,
        driver: subprocess.Popen[bytes],
        session_file: Path,
        begins: int,
        scratch: Path,
    ) -> None:
        super().__init__(run.config, run.model, run.folder.logs, mark, run.roles)
        self._live = run
        self._driver = driver
        self._session_file = session_file
        self._log = run.folder.logs / LOG
        self._scratch = scratch
        self._begins = begins
        self._seen = {self._log: begins}
        self._warned: set[str] = set()

    async def work(self, queue: Queue) -> None:
        SessionFile(
            run_dir=str(self._live.folder.path),
            store_url=self.store_url,
            store_key=self.store_key,
            gateway_url=self.gateway.base_url,
            control_key=self.gateway.control_key,
            model=self.model,
            config=self.config.dump(),
        ).write(self._session_file)
        try:
            while (status := self._driver.poll()) is None:
                await asyncio.to_thread(self._look)
                if full := self._live.full():
                    raise RunFailed(full)
                await asyncio.sleep(POLL_S)
            self._look()
        finally:
            await asyncio.shield(asyncio.to_thread(stop_process, self._driver))
        if status != 0:
            reason = self._live.full() or last_error(self._log, status)
            if _NO_ROOM.search(reason) and not self._live.full():
                reason = f"{reason}. {temporary_room(self._scratch.parent)}"
            raise RunFailed(f"verl ended with status {status}: {reason} (whole log: {self._log})")

    def _look(self) -> None:
        """Process new steps and new log lines.

        Raises:
            RunFailed: Too many rollouts failed, one was lost, or a process could start no thread.
        """
        try:
            self._live.poll()
        except RunFailed as symptom:
            if not (cause := self._cause()):
                raise
            raise RunFailed(f"{cause} (whole log: {self._log})") from symptom
        text = self._new_output()
        # A line of Ray's worker appears twice.
        for warning in {*_WARNING.findall(text)} - self._warned:
            logger.error("%s", warning)
            self._warned.add(warning)
        # Without threads Ray would restart its worker every five minutes, without end.
        if advice := starved(text):
            raise RunFailed(f"{advice}. Then `harness train --resume {self._live.folder.path}`")
        lost = self._session_file.with_name(LOST_FILE)
        if lost.exists():
            raise RunFailed(f"{lost.read_text()} (whole log: {self._log})")

    def _cause(self) -> str:
        """Return the driver's line about what died, if it writes one in time; else empty text."""
        ends = time.monotonic() + CAUSE_S
        while True:
            with self._log.open("rb") as file:
                file.seek(self._begins)
                lines = file.read().decode(errors="replace").splitlines()
            causes = [line for line in lines if line.startswith(OURS)]
            if causes:
                return causes[-1].removeprefix(OURS)
            if time.monotonic() > ends:
                return ""
            time.sleep(POLL_S)

    def _new_output(self) -> str:
        """Return verl's and Ray's output since the last call, without an incomplete last line."""
        texts = []
        for log in (self._log, *self._scratch.glob("ray/session_2*/logs/*.[eo][ru][rt]")):
            with log.open("rb") as file:
                file.seek(self._seen.get(log, 0))
                output = file.read()
            self._seen[log] = self._seen.get(log, 0) + output.rfind(b"\n") + 1
            texts.append(output.decode(errors="replace"))
        return "".join(texts)


_PREFIX = r"^(\x1b\[\d+m)?(\((raylet|[^()]*pid=[^()]*)\))?(\x1b\[0m)?\s*"
"""Ray's prefix for a line of another process."""
_NO_ROOM = re.compile(r"No space left|Disk quota exceeded")
_NAMES_A_CAUSE = (
    _NO_ROOM,
    re.compile(r"Raylet is terminated"),
    re.compile(OURS),
    # The last line of a traceback: a class, and mostly a message.
    re.compile(
        _PREFIX + r"(\w+\.)*\w*(Error|Exception|Interrupt|Exit|Died|Killed)(\(\w+\))?(: |$)"
    ),
    re.compile(r"Error|Exception|Check failed"),
)
"""Patterns of lines that name a cause, the most reliable first."""
_WARNS = re.compile(r"warn", re.IGNORECASE)
_WARNING = re.compile(rf"{WARNS}(.+)")


def temporary_room(folder: Path) -> str:
    """Describe the free space for temporary files in `folder` and shared memory, with advice."""
    rooms = []
    for place in (folder, Path("/dev/shm")):
        with suppress(OSError):
            usage = shutil.disk_usage(place)
            rooms.append(
                f"{place} ({usage.free / 2**20:,.1f} of {usage.total / 2**20:,.1f} MiB free)"
            )
    return f"Ray's temporary files are in {' and '.join(rooms)}: make room there, or set TMPDIR"


def last_error(log: Path, status: int = 1) -> str:
    """Return why verl's process ended: its signal, or the line of its log that names the cause."""
    text = log.read_text(encoding="utf-8", errors="replace")
    if explained := start_failure(text):
        return explained
    lines = []
    for line in text.splitlines()[-400:]:
        # A warning may quote an error that did not end the process.
        if line.strip() and not _WARNS.search(line):
            lines.append(line)
    # A killed process wrote no cause of its own, so use only reliable patterns.
    for pattern in _NAMES_A_CAUSE[:3] if status < 0 else _NAMES_A_CAUSE:
        place = _last_place(pattern, lines)
        if place is not None:
            cause = [re.sub(_PREFIX, "", lines[place], count=1).strip().removeprefix(OURS)]
            # A message may begin on its own line and continue below.
            if cause[0].endswith(":"):
                for line in lines[place + 1 :][:1]:
                    cause.append(re.sub(_PREFIX, "", line, count=1).strip())
            return " ".join(cause)[:300]
    if status < 0:
        return f"it was killed by {signal.Signals(-status).name}"
    return (lines or ["no output"])[-1].strip()[:300]


def _last_place(pattern: re.Pattern[str], lines: Sequence[str]) -> int | None:
    """Return the index of the last line with a match; None without one."""
    for place in reversed(range(len(lines))):
        if pattern.search(lines[place]):
            return place
    return None

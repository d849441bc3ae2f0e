"""A verl process beside the rollout services that feed it, for as long as it trains."""

from __future__ import annotations

import asyncio
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

from harness.errors import RunFailed
from harness.rollout.processes import stop_process
from harness.rollout.stack import RolloutWork
from harness.trainers import Job
from harness.trainers.monitor import Monitor
from harness.trainers.verl.shared import SessionFile

if TYPE_CHECKING:
    from agentlightning.store.base import LightningStore

POLL_S = 0.25


class VerlRun(RolloutWork):
    """Tells verl's processes where the services are, follows the run, and ends with it.

    Args:
        driver: The process in which verl runs, already started.
        session_file: Where verl's processes look for the services once they need them.
    """

    def __init__(
        self,
        job: Job,
        model: str,
        mark: str,
        driver: subprocess.Popen[bytes],
        session_file: Path,
        monitor: Monitor,
    ) -> None:
        super().__init__(job.config, model, job.folder.logs, mark)
        self._job = job
        self._driver = driver
        self._session_file = session_file
        self._monitor = monitor

    async def work(self, store: LightningStore) -> None:
        SessionFile(
            run_dir=str(self._job.folder.path),
            store_url=self.store_url,
            gateway_url=self.gateway.base_url,
            control_key=self.gateway.control_key,
            model=self.model,
            config=self.config.dump(),
        ).write(self._session_file)
        try:
            while (status := self._driver.poll()) is None:
                self._job.on_progress(await asyncio.to_thread(self._monitor.poll))
                await asyncio.sleep(POLL_S)
            self._job.on_progress(self._monitor.poll())
        finally:
            await asyncio.shield(asyncio.to_thread(stop_process, self._driver))
        if status != 0:
            log = self._job.folder.logs / "verl.log"
            raise RunFailed(f"verl ended with status {status}: {last_error(log)} (whole log: {log})")


def last_error(log: Path) -> str:
    """The line of a log that most likely names the cause."""
    lines = log.read_text(errors="replace").splitlines()[-400:]
    errors = [line for line in lines if "Error" in line or "Exception" in line]
    chosen = errors[-1] if errors else (lines[-1] if lines else "no output")
    return chosen.strip()[:300]

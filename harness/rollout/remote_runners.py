"""Runners on other machines: their invitation, and the detection of lost ones."""

from __future__ import annotations

import asyncio
import json
import logging
import os
from collections.abc import Coroutine, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import harness
from harness.contracts.queue import Queue
from harness.errors import ConfigError
from harness.rollout.worker import WorkerSettings
from harness.util import clock

logger = logging.getLogger(__name__)

FILE_NAME = "join.json"
FIRST_NUMBER = 1_000_000
"""Lowest number of a joined runner. Numbers are random above it, because no process assigns
them.
"""
LOST_S = 45.0
"""A joined runner is given up after this long without a heartbeat, which runners send every
15 s.
"""


@dataclass(frozen=True, slots=True)
class Invitation:
    """Data that a runner needs to join a run, in a file that only the run's owner can read."""

    run: str
    agent: str
    version: str
    store_url: str
    gateway_url: str
    control_key: str
    concurrency: int
    timeout_s: float
    store_key: str = field(default="", repr=False)

    def write(self, path: Path) -> None:
        """Write the invitation to `path`. Only its owner can read it: it holds the control key."""
        # A new file: an existing one would keep its own permissions.
        path.unlink(missing_ok=True)
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            json.dump(asdict(self), file)

    @classmethod
    def read(cls, path: Path) -> Invitation:
        """Return the invitation in a file or a run folder.

        Raises:
            ConfigError: There is none, or it was written by another version of harness.
        """
        file = path / FILE_NAME if path.is_dir() else path
        try:
            return cls.of(json.loads(file.read_text(encoding="utf-8")), str(file))
        except OSError as error:
            raise ConfigError(
                f"no run to join at {file} ({error.strerror}): "
                "it is written while services run, and then removed"
            ) from error
        except ValueError as error:
            raise ConfigError(f"{file} is not the join file of a run: {error}") from error

    @classmethod
    def of(cls, data: Mapping[str, Any], source: str) -> Invitation:
        """Return the invitation in plain data.

        Raises:
            ConfigError: The data was written by another version of harness, or is no invitation.
        """
        # Check the version first: another version may have other fields.
        version = data.get("version") if isinstance(data, Mapping) else None
        if version not in (None, harness.__version__):
            raise ConfigError(
                f"{source} is of harness {version}, this is {harness.__version__}: "
                "install that version here"
            )
        try:
            return cls(**data)
        except TypeError as error:
            raise ConfigError(f"{source} is not the join file of a run: {error}") from error

    def settings(self, agent: str, source: str, number: int, heartbeat: Path) -> WorkerSettings:
        """Return the settings of one worker with one of the run's agents.

        Args:
            source: Hash that the agent's Python files must have; empty where it is not known.
        """
        return WorkerSettings(
            agent=agent,
            worker_id=number,
            store_url=self.store_url,
            gateway_url=self.gateway_url,
            control_key=self.control_key,
            concurrency=self.concurrency,
            heartbeat_file=str(heartbeat),
            store_key=self.store_key,
            agent_source=source,
        )


async def watch_joined(queue: Queue) -> None:
    """Return the rollouts of joined runners that are lost to the queue, until cancelled."""
    lost: set[str] = set()
    while True:
        await asyncio.sleep(LOST_S / 9)
        for runner, heard_s in (await queue.heard()).items():
            number = runner.rpartition("-")[2]
            if not number.isdigit() or int(number) < FIRST_NUMBER:
                continue  # the pool's own
            silent_s = clock.now() - heard_s
            if silent_s <= LOST_S:
                lost.discard(runner)
            elif runner not in lost:
                lost.add(runner)
                reason = f"was silent for {silent_s:.0f} s"
                logger.warning("joined runner %s %s", runner, reason)
                await queue.hand_back(runner, reason)


async def first(*works: Coroutine[Any, Any, None]) -> None:
    """Run until the first of them ends or raises; the others are cancelled."""
    tasks = {asyncio.create_task(work) for work in works}
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    for task in done:
        task.result()

"""Runners away from the run: what they are told, how they work, and how the run notices that they are gone."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import random
from collections.abc import Coroutine
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import harness
from harness import clock
from harness.errors import ConfigError
from harness.gateway.client import GatewayControl
from harness.rollout.pool import WorkerPool, give_back
from harness.rollout.worker import WorkerSettings

if TYPE_CHECKING:
    from agentlightning.store.base import LightningStore

logger = logging.getLogger(__name__)

FILE_NAME = "join.json"
FIRST_NUMBER = 1_000_000
"""Runners that joined have numbers from here on, drawn at random: nobody hands them out."""
LOST_S = 45.0
"""A joined runner is given up after this long without one of agentlightning's heartbeats, sent every 15 s."""
ASK_S = 1.0
MISSED = 3
"""A run whose gateway has not answered so many times in a row has ended."""


@dataclass(frozen=True, slots=True)
class Invitation:
    """What a runner needs to know of a run: a file in the run's folder that only its owner can read."""

    run: str
    agent: str
    version: str
    store_url: str
    gateway_url: str
    control_key: str
    concurrency: int
    timeout_s: float

    def write(self, path: Path) -> None:
        """Leave it at `path`, which nobody else may read: it holds the control key."""
        path.unlink(missing_ok=True)
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            json.dump(asdict(self), file)

    @classmethod
    def read(cls, path: Path) -> Invitation:
        """The invitation in a file, or in a run folder.

        Raises:
            ConfigError: There is none, or it is of another version of harness.
        """
        file = path / FILE_NAME if path.is_dir() else path
        try:
            invitation = cls(**json.loads(file.read_text(encoding="utf-8")))
        except OSError as error:
            raise ConfigError(
                f"no run to join at {file} ({error.strerror}): it is written while services run, and then removed"
            ) from error
        except (ValueError, TypeError) as error:
            raise ConfigError(f"{file} is not the join file of a run: {error}") from error
        if invitation.version != harness.__version__:
            raise ConfigError(f"{file} is of harness {invitation.version}, this is {harness.__version__}")
        return invitation

    def settings(self, number: int, heartbeat: Path) -> WorkerSettings:
        """The settings of one worker."""
        return WorkerSettings(
            agent=self.agent,
            worker_id=number,
            store_url=self.store_url,
            gateway_url=self.gateway_url,
            control_key=self.control_key,
            concurrency=self.concurrency,
            heartbeat_file=str(heartbeat),
        )


async def join_run(invitation: Invitation, runners: int, log_dir: Path) -> None:
    """Work for a run with `runners` processes until it ends.

    Raises:
        ConfigError: The run does not answer.
        RunFailed: The processes keep dying.
    """
    from harness.plugins import agent_spec, registry
    from harness.rollout.environments import python_for

    spec = agent_spec(invitation.agent)
    if not await _answers(invitation.gateway_url):
        raise ConfigError(
            f"run {invitation.run} does not answer at {invitation.gateway_url}: it has ended, or this machine cannot "
            "reach it (rollout.host of the run, or a tunnel to its ports)"
        )
    pool = WorkerPool(
        runners,
        invitation.settings,
        log_dir,
        invitation.timeout_s,
        python_for(registry().owner("agent", spec.name)),
        first=FIRST_NUMBER + random.SystemRandom().randrange(2**30),
    )
    try:
        pool.start()  # before agentlightning's imports, which the processes do as well
        await first(_ended(invitation.gateway_url), _watch(pool, invitation))
    except Exception:
        if await _answers(invitation.gateway_url):
            raise
    finally:
        await asyncio.to_thread(pool.stop)


async def _watch(pool: WorkerPool, invitation: Invitation) -> None:
    from harness.rollout.store import StoreClient

    store = StoreClient(invitation.store_url)
    try:
        async with GatewayControl(invitation.gateway_url, invitation.control_key) as control:
            await pool.watch(store, control)
    finally:
        await store.close()


async def watch_joined(store: LightningStore) -> None:
    """Hand back what runners had under way that joined and fell silent, until cancelled."""
    lost: set[str] = set()
    while True:
        await asyncio.sleep(LOST_S / 9)
        for worker in await store.query_workers():
            number = worker.worker_id.rpartition("-")[2]
            if not number.isdigit() or int(number) < FIRST_NUMBER:
                continue  # the pool's own
            seen = max(worker.last_heartbeat_time or 0.0, worker.last_dequeue_time or 0.0)
            silent_s = clock.now() - seen
            if silent_s <= LOST_S:
                lost.discard(worker.worker_id)
            elif worker.worker_id not in lost:
                lost.add(worker.worker_id)
                reason = f"was silent for {silent_s:.0f} s"
                logger.warning("joined runner %s %s", worker.worker_id, reason)
                await give_back(store, worker.worker_id, reason)


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


async def _ended(gateway_url: str) -> None:
    missed = 0
    while missed < MISSED:
        await asyncio.sleep(ASK_S)
        missed = 0 if await _answers(gateway_url) else missed + 1


async def _answers(gateway_url: str) -> bool:
    import aiohttp

    limit = aiohttp.ClientTimeout(total=5)
    try:
        async with aiohttp.ClientSession(timeout=limit) as http, http.get(f"{gateway_url}/health") as answer:
            return answer.status == 200
    except (aiohttp.ClientError, TimeoutError):
        return False

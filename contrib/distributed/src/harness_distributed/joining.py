"""Work for one run with local processes, until the run ends."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import aiohttp

from harness.errors import ConfigError
from harness.gateway.client import GatewayControl
from harness.rollout.agent_pools import AgentPools
from harness.rollout.queue_plugin import queue_backend
from harness.rollout.remote_runners import FIRST_NUMBER, Invitation, first

ASK_S = 1.0
MISSED = 3
"""Consecutive missing answers of a run's gateway that mark its end."""
HAND_ON_S = 5.0
"""Seconds for a stopping runner to return the unfinished work of its processes."""


async def join_run(invitation: Invitation, runners: int, log_dir: Path) -> None:
    """Work for a run with `runners` processes until it ends.

    After a cancellation, other runners get the unfinished work.

    Raises:
        ConfigError: The run does not answer.
        RunFailed: The processes keep dying.
    """
    from harness.plugins import agent_spec

    agent_spec(invitation.agent)  # refuses an agent that is not installed here
    if not await answers(invitation.gateway_url):
        raise ConfigError(
            f"run {invitation.run} does not answer at {invitation.gateway_url}: "
            "it has ended, or this machine cannot "
            "reach it (rollout.host of the run, or a tunnel to its ports)"
        )
    number = FIRST_NUMBER + random.SystemRandom().randrange(2**30)
    pools = AgentPools(invitation, runners, log_dir, number)
    names: Sequence[str] = ()
    try:
        pools.start()  # before the queue's slow imports, which the processes do in parallel
        await first(_ended(invitation.gateway_url), _watch(pools, invitation))
    except asyncio.CancelledError:
        names = pools.ids()
        raise
    except Exception:
        if await answers(invitation.gateway_url):
            raise
    finally:
        await asyncio.to_thread(pools.stop)
        if names:
            await _hand_on(invitation, names)


async def _hand_on(invitation: Invitation, names: Sequence[str]) -> None:
    """Return to the queue the unfinished work of processes that did not do so in time."""
    queue = queue_backend().connect(invitation.store_url, invitation.store_key)
    with suppress(Exception):  # otherwise the store notices that they are silent
        async with asyncio.timeout(HAND_ON_S):
            for name in names:
                await queue.hand_back(name, "was stopped")
    await queue.close()


async def _watch(pools: AgentPools, invitation: Invitation) -> None:
    queue = queue_backend().connect(invitation.store_url, invitation.store_key)
    try:
        async with GatewayControl(invitation.gateway_url, invitation.control_key) as control:
            await pools.watch(queue, control)
    finally:
        await queue.close()


async def _ended(gateway_url: str) -> None:
    missed = 0
    while missed < MISSED:
        await asyncio.sleep(ASK_S)
        missed = 0 if await answers(gateway_url) else missed + 1


async def answers(gateway_url: str) -> bool:
    """Return whether a run's gateway answers."""
    limit = aiohttp.ClientTimeout(total=5)
    try:
        async with (
            aiohttp.ClientSession(timeout=limit) as http,
            http.get(f"{gateway_url}/health") as answer,
        ):
            return answer.status == 200
    except (aiohttp.ClientError, TimeoutError):
        return False

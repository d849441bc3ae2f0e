"""The stage of the agents' contract: a scripted model behind a real gateway."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx

from harness.contracts.programs import Scenario
from harness.contracts.toolbox import Agent
from harness.gateway.client import GatewayControl
from harness.gateway.server import GatewayServer
from harness.mock_model.server import ScriptedServer
from harness.parity.recorder import staged_request
from harness.parity.recording_relay import RecordingRelay
from harness.plugins import program
from harness.records import Attempt
from harness.rollout.host import run_attempt
from harness.rollout.request import RolloutRequest

IDLE_S = 1.0
"""Seconds with almost no processor time until a process is idle; telemetry clients wait for half a
second.
"""
WATCHED_S = 5.0
"""Seconds after the answer for which an agent that is never idle is watched."""


@dataclass
class Stage:
    """A scripted model behind a real gateway, with a tap in front of it."""

    server: ScriptedServer
    gateway: GatewayServer
    tap: RecordingRelay
    control: GatewayControl
    http_client: httpx.AsyncClient
    program: str
    scenario: Scenario
    folder: Path

    def request(self, question: str | None = None, **changes: Any) -> RolloutRequest:
        request = staged_request(
            self.program, self.scenario, self.folder, **{"timeout_s": 30.0, **changes}
        )
        if question is None:
            return request
        return replace(request, problem=replace(request.problem, question=question))

    async def attempt(self, agent: Agent, rollout_id: str, request: RolloutRequest) -> Attempt:
        return await run_attempt(
            agent,
            request,
            rollout_id,
            "1",
            self.control,
            self.gateway.key,
            "scripted",
            self.http_client,
        )


@contextlib.asynccontextmanager
async def staged(
    of: str, scenario: Scenario, gateway: GatewayServer, folder: Path, script: Any = None
) -> AsyncIterator[Stage]:
    """Yield the stage of a program's scenario; `script` overrides the scenario's replies."""
    with ScriptedServer(script or program(of).script(scenario)) as server:
        async with (
            gateway.control() as control,
            RecordingRelay(gateway) as tap,
            httpx.AsyncClient(trust_env=False, timeout=None) as http_client,
        ):
            await control.set_upstreams([server.base_url], model=server.model, token_ids=True)
            async with tap.control() as tapped:
                yield Stage(server, gateway, tap, tapped, http_client, of, scenario, folder)


@contextlib.contextmanager
def no_other_sockets(stage: Stage) -> Iterator[None]:
    """Fail if any thread sends data to anything but the tap, the gateway and the scripted model."""
    ours = {_port(server.base_url) for server in (stage.tap, stage.gateway, stage.server)}
    strangers: dict[str, None] = {}
    active = True

    def watch(event: str, arguments: tuple[Any, ...]) -> None:
        if not active:
            return
        if event in ("socket.connect", "socket.sendto"):
            where = arguments[1]
            if isinstance(where, tuple) and (
                where[0] not in ("127.0.0.1", "::1") or where[1] not in ours
            ):
                strangers[f"{where[0]}:{where[1]}"] = None
        elif event in ("socket.getaddrinfo", "socket.gethostbyname"):
            name = arguments[0]
            if isinstance(name, bytes):
                name = name.decode(errors="replace")
            # A DNS request already sends data to a stranger, even without a connection.
            if name not in ("127.0.0.1", "localhost", "::1", None):
                strangers[str(name)] = None

    sys.addaudithook(watch)  # cannot be removed again, only disabled
    try:
        yield
        assert not strangers, f"spoke to {', '.join(strangers)}"
    finally:
        active = False


def _port(url: str) -> int:
    return int(url.split(":")[2].split("/")[0])


async def until_idle() -> None:
    """Wait for an agent's remaining threads, until the process is idle."""
    ends = time.monotonic() + WATCHED_S
    while time.monotonic() < ends:
        used = time.process_time()
        await asyncio.sleep(IDLE_S)
        if time.process_time() - used < IDLE_S / 20:
            return


def agent_tasks(stage: Stage) -> set[Any]:
    """Return tasks of the loop and threads, except those of the stage."""
    own = ("aiohttp", "harness/testing", "harness/parity")
    tasks = set()
    for task in asyncio.all_tasks():
        # The location of its code distinguishes a task of the stage from one of the agent.
        code = str(getattr(task.get_coro(), "cr_code", ""))
        of_stage = task is asyncio.current_task() or any(part in code for part in own)
        if not of_stage and not task.done():
            tasks.add(task)
    return tasks

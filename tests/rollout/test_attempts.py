"""Attempts end in typed outcomes, whatever the agent, the endpoint or the worker does. Real gateway, real HTTP."""

from __future__ import annotations

import asyncio
import dataclasses
import sqlite3
import time
from pathlib import Path

import httpx
import pytest

from harness.agents.reference_sql import ReferenceSQL
from harness.gateway.attempts import call_seed
from harness.gateway.client import GatewayControl
from harness.gateway.server import GatewayServer
from harness.prompts import APPROVED
from harness.records import Attempt, Problem
from harness.rollout.host import run_attempt
from harness.rollout.request import RolloutRequest, rollout_seed
from harness.rollout.spans import from_spans, to_spans
from harness.testing.fixtures import StartServer
from harness.testing.scripted_server import Reply, ScriptedServer
from harness.toolbox import Agent, Toolbox

WRITE = "```sql\nSELECT name FROM singer\n```"


@pytest.fixture
def request_(tmp_path: Path) -> RolloutRequest:
    database = tmp_path / "db.sqlite"
    with sqlite3.connect(database) as connection:
        connection.execute("CREATE TABLE singer (name TEXT)")
        connection.execute("INSERT INTO singer VALUES ('Ella')")
    return RolloutRequest(
        problem=Problem("t", "Who sings?", "db", "singer(name text)"),
        db_path=str(database),
        mode="train",
        max_turns=2,
        sampling={"temperature": 0.7, "top_p": 1.0, "max_tokens": 32, "seed": 11},
        sandbox={"timeout_s": 2.0, "max_rows": 5, "max_chars": 400},
        timeout_s=3.0,
        retries=0,
    )


async def attempt(
    control: GatewayControl, gateway: GatewayServer, server: ScriptedServer, agent: Agent, request: RolloutRequest
) -> Attempt:
    await control.set_upstreams([server.base_url], model="scripted", token_ids=True)
    async with httpx.AsyncClient(timeout=None) as http:
        rollout = f"r-{time.time_ns()}"
        return await run_attempt(agent, request, rollout, "a", control, gateway.key, "scripted", http)


async def test_a_good_attempt_carries_exact_tokens_and_queries(
    control: GatewayControl, gateway: GatewayServer, scripted_server: StartServer, request_: RolloutRequest
) -> None:
    server = scripted_server([WRITE, f"Fine. {APPROVED}"])
    result = await attempt(control, gateway, server, ReferenceSQL(), request_)
    assert (result.outcome, result.answer) == ("ok", "SELECT name FROM singer")
    assert [call.role for call in result.transitions] == ["write_query", "check_query"]
    assert [turn.sql for turn in result.turns] == ["SELECT name FROM singer"]
    assert "Ella" in result.turns[0].text and "Ella" in str(server.requests[1].messages)
    first = result.transitions[0]
    assert first.response_ids is not None and first.logprobs is not None
    assert len(first.response_ids) == len(first.logprobs)
    # The gateway's doing: the agent never saw them.
    assert [request.params["seed"] for request in server.requests] == [
        call_seed(11, "write_query", 0),
        call_seed(11, "check_query", 0),
    ]
    assert not first.overridden
    assert from_spans(to_spans(result)) == result


class Raises(ReferenceSQL):
    async def solve(self, problem: Problem, toolbox: Toolbox) -> str:
        raise KeyError("a bug of the plugin")


class Sleeps(ReferenceSQL):
    stubborn = True

    async def solve(self, problem: Problem, toolbox: Toolbox) -> str:
        while True:
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                if not self.stubborn:
                    raise


class Silent(ReferenceSQL):
    async def solve(self, problem: Problem, toolbox: Toolbox) -> str:
        return "SELECT 1"


class Swallows(ReferenceSQL):
    async def solve(self, problem: Problem, toolbox: Toolbox) -> str:
        try:
            return await super().solve(problem, toolbox)
        except Exception:
            return "SELECT 'made up'"


@pytest.mark.parametrize(
    ("agent", "replies", "outcome", "detail"),
    [
        (Raises(), [], "agent_error", "a bug of the plugin"),
        (Silent(), [], "no_transitions", "without calling"),
        (ReferenceSQL(), [Reply.failure(500)], "endpoint_error", "500"),
        (ReferenceSQL(), [WRITE, Reply.failure(429)], "endpoint_error", "429"),
        (Swallows(), [Reply.failure(503)], "endpoint_error", "503"),
        (ReferenceSQL(), [WRITE, Reply.failure(400, "maximum context length is 864")], "prompt_too_long", "864"),
    ],
)
async def test_failures_are_typed(
    control: GatewayControl,
    gateway: GatewayServer,
    scripted_server: StartServer,
    request_: RolloutRequest,
    agent: Agent,
    replies: list[Reply | str],
    outcome: str,
    detail: str,
) -> None:
    result = await attempt(control, gateway, scripted_server(replies), agent, request_)
    assert result.outcome == outcome and detail in result.detail
    assert result.answer is None  # nothing that could be scored


async def test_the_deadline_ends_an_agent_that_ignores_its_cancellation(
    control: GatewayControl, gateway: GatewayServer, scripted_server: StartServer, request_: RolloutRequest
) -> None:
    began = time.monotonic()
    quick = dataclasses.replace(request_, timeout_s=0.3)
    agent = Sleeps()
    result = await attempt(control, gateway, scripted_server([]), agent, quick)
    assert result.outcome == "timeout"
    assert time.monotonic() - began < 8
    agent.stubborn = False  # the worker process would now be ended; this loop must be able to


async def test_a_deadline_that_the_endpoint_used_up_is_the_endpoints(
    control: GatewayControl, gateway: GatewayServer, scripted_server: StartServer, request_: RolloutRequest
) -> None:
    quick = dataclasses.replace(request_, timeout_s=1.0)
    late = await attempt(control, gateway, scripted_server([Reply(WRITE, delay_s=5.0)]), ReferenceSQL(), quick)
    assert late.outcome == "endpoint_error" and "attempt_timeout" in late.detail


class NeverDone(ReferenceSQL):
    """Asks again and again, as an agent does whose loop has no end."""

    async def solve(self, problem: Problem, toolbox: Toolbox) -> str:
        while True:
            await self._ask(toolbox, toolbox.prompts.write(problem))


async def test_a_deadline_that_the_agent_used_up_is_the_agents(
    control: GatewayControl, gateway: GatewayServer, scripted_server: StartServer, request_: RolloutRequest
) -> None:
    quick = dataclasses.replace(request_, timeout_s=1.5)
    result = await attempt(control, gateway, scripted_server(lambda request: WRITE), NeverDone(), quick)
    assert len(result.transitions) > 2 * request_.max_turns
    assert result.outcome == "timeout"


def test_rollout_seeds_differ_by_everything_that_names_a_rollout() -> None:
    seeds = {
        rollout_seed(seed, mode, step, task, session)  # type: ignore[arg-type]
        for seed in (0, 1)
        for mode in ("train", "val")
        for step in (1, 2)
        for task in ("a", "b")
        for session in (0, 1)
    }
    assert len(seeds) == 32 and max(seeds) < 2**31

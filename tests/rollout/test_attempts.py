"""Attempts end in typed outcomes, whatever the agent, the endpoint or the worker does. Real gateway, real HTTP."""

from __future__ import annotations

import asyncio
import dataclasses
import sqlite3
import time
from pathlib import Path

import httpx
import pytest

from harness.contracts.toolbox import Agent, Toolbox
from harness.gateway.attempts import call_seed
from harness.gateway.client import GatewayControl
from harness.gateway.server import GatewayServer
from harness.mock_model.server import Reply, ScriptedServer
from harness.records import Attempt, Problem
from harness.rollout.host import run_attempt
from harness.rollout.request import RolloutRequest, rollout_seed
from harness.rollout.worker import keep_running
from harness.testing.fixtures import StartServer
from harness_agentlightning_queue.spans import from_spans, to_spans
from harness_sql.self_correcting.prompts import APPROVED
from harness_sql.self_correcting.reference import ReferenceSQL

WRITE = "```sql\nSELECT name FROM singer\n```"


def sql_request(folder: Path, timeout_s: float = 3.0) -> RolloutRequest:
    """Return the request of a rollout with a new database in `folder`."""
    database = folder / "db.sqlite"
    with sqlite3.connect(database) as connection:
        connection.execute("CREATE TABLE singer (name TEXT)")
        connection.execute("INSERT INTO singer VALUES ('Ella')")
    return RolloutRequest(
        problem=Problem("t", "Who sings?", {"schema": "singer(name text)"}),
        program="self_correcting_sql",
        environment="sql",
        payload={
            "database": str(database),
            "limits": {"timeout_s": 2.0, "max_rows": 5, "max_chars": 400},
        },
        phase="train",
        max_turns=2,
        sampling={
            "temperature": 0.7,
            "top_p": 1.0,
            "max_tokens": 32,
            "seed": 11,
            "chat_template_kwargs": {"enable_thinking": False},
        },
        tool_timeout_s=2.0,
        timeout_s=timeout_s,
        retries=0,
    )


@pytest.fixture
def request_(tmp_path: Path) -> RolloutRequest:
    return sql_request(tmp_path)


async def attempt(
    control: GatewayControl,
    gateway: GatewayServer,
    server: ScriptedServer,
    agent: Agent,
    request: RolloutRequest,
) -> Attempt:
    await control.set_upstreams([server.base_url], model="scripted", token_ids=True)
    async with httpx.AsyncClient(timeout=None) as http:
        rollout = f"r-{time.time_ns()}"
        return await run_attempt(
            agent, request, rollout, "a", control, gateway.key, "scripted", http
        )


async def test_a_good_attempt_carries_exact_tokens_and_queries(
    control: GatewayControl,
    gateway: GatewayServer,
    scripted_server: StartServer,
    request_: RolloutRequest,
) -> None:
    server = scripted_server([WRITE, f"Fine. {APPROVED}"])
    result = await attempt(control, gateway, server, ReferenceSQL(), request_)
    assert (result.outcome, result.answer) == ("ok", "SELECT name FROM singer")
    assert [call.role for call in result.transitions] == ["write_query", "check_query"]
    assert [call.arguments for call in result.tool_calls] == [{"sql": "SELECT name FROM singer"}]
    assert "Ella" in result.tool_calls[0].text and "Ella" in str(server.requests[1].messages)
    first = result.transitions[0]
    assert first.response_ids is not None and first.logprobs is not None
    assert len(first.response_ids) == len(first.logprobs)
    # The gateway's doing: the agent never saw these.
    assert all(
        request.params["chat_template_kwargs"] == {"enable_thinking": False}
        for request in server.requests
    )
    assert [request.params["seed"] for request in server.requests] == [
        call_seed(11, "write_query", 0),
        call_seed(11, "check_query", 0),
    ]
    assert not first.overridden
    assert from_spans(to_spans(result)) == result


class Raises(ReferenceSQL):
    async def solve(self, problem: Problem, toolbox: Toolbox) -> str:
        raise KeyError("a bug of the plugin")


class RaisesWhat(ReferenceSQL):
    """Raises what no task may raise."""

    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.error = error

    async def solve(self, problem: Problem, toolbox: Toolbox) -> str:
        await asyncio.sleep(0)
        raise self.error


class CancelsItself(ReferenceSQL):
    async def solve(self, problem: Problem, toolbox: Toolbox) -> str:
        this = asyncio.current_task()
        assert this is not None
        this.cancel()
        await asyncio.sleep(60)
        return "never"


class NoCoroutine(ReferenceSQL):
    def solve(self, problem: Problem, toolbox: Toolbox) -> str:  # type: ignore[override]
        raise SystemExit(2)


class AsksWrongly(ReferenceSQL):
    """Sends one request that cannot be served before it does its work."""

    def __init__(self, gives_up: bool) -> None:
        super().__init__()
        self.gives_up = gives_up

    async def solve(self, problem: Problem, toolbox: Toolbox) -> str:
        llm = toolbox.llm("write_query")
        answer = "" if self.gives_up else await super().solve(problem, toolbox)
        bad = await toolbox.http_client.post(
            f"{llm.base_url}/chat/completions",
            json={"messages": "no list"},
            headers={"authorization": f"Bearer {llm.api_key}"},
        )
        assert bad.status_code == 400
        if self.gives_up:
            bad.raise_for_status()
        return answer


class Delegates(ReferenceSQL):
    """Leaves the work to a task of its own, as graph frameworks do."""

    async def solve(self, problem: Problem, toolbox: Toolbox) -> str:
        async def leave() -> str:
            raise SystemExit(4)

        return await asyncio.create_task(leave())


class Surrogates(ReferenceSQL):
    async def solve(self, problem: Problem, toolbox: Toolbox) -> str:
        await super().solve(problem, toolbox)
        await toolbox.execute("SELECT '\ud83d'")
        return "SELECT '\udc00'"


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


class HangsUp(ReferenceSQL):
    """Its HTTP client gives each call a fifth of a second; then it answers on, or raises."""

    def __init__(self, answers: bool) -> None:
        super().__init__()
        self.answers = answers

    async def solve(self, problem: Problem, toolbox: Toolbox) -> str:
        llm = toolbox.llm("write_query")
        try:
            await toolbox.http_client.post(
                f"{llm.base_url}/chat/completions",
                json={"messages": [{"role": "user", "content": "Slowly."}]},
                headers={"authorization": f"Bearer {llm.api_key}"},
                timeout=0.2,
            )
        except httpx.ReadTimeout:
            if not self.answers:
                raise
        return "SELECT name FROM singer"


class LeavesACall(ReferenceSQL):
    """Raises while a call of its own is under way."""

    async def solve(self, problem: Problem, toolbox: Toolbox) -> str:
        self.call = asyncio.create_task(self.ask(toolbox, toolbox.prompts.write(problem)))
        await asyncio.sleep(0.3)
        raise ValueError("no patience")


class AsksForTools(ReferenceSQL):
    async def solve(self, problem: Problem, toolbox: Toolbox) -> str:
        llm = toolbox.llm("write_query")
        answer = await toolbox.http_client.post(
            f"{llm.base_url}/chat/completions",
            json={"messages": [{"role": "user", "content": "?"}], "tool_choice": "required"},
            headers={"authorization": f"Bearer {llm.api_key}"},
        )
        answer.raise_for_status()
        return ""


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise SystemExit(9)


class Slippery(str):
    """Text that is none when somebody looks."""

    def encode(self, *_: str, **__: str) -> bytes:
        raise SystemExit(9)

    __str__ = __repr__ = __len__ = __eq__ = encode  # type: ignore[assignment]
    __hash__ = None  # type: ignore[assignment]


class AnswersSlippery(ReferenceSQL):
    async def solve(self, problem: Problem, toolbox: Toolbox) -> str:
        answer = await super().solve(problem, toolbox)
        await toolbox.execute(Slippery(answer))
        return Slippery(answer)


class AnswersNoText(ReferenceSQL):
    async def solve(self, problem: Problem, toolbox: Toolbox) -> str:
        return b"SELECT 1"  # type: ignore[return-value]


class Wraps(ReferenceSQL):
    async def solve(self, problem: Problem, toolbox: Toolbox) -> str:
        try:
            try:
                raise OSError(24, "Too many open files")
            except OSError as error:
                raise RuntimeError("Connection error.") from error
        except RuntimeError as error:
            raise ConnectionError("Failed to connect. " + 400 * "?") from error


class Rings(ReferenceSQL):
    async def solve(self, problem: Problem, toolbox: Toolbox) -> str:
        first, second = ValueError("first"), ValueError("second")
        first.__cause__, second.__cause__ = second, first
        raise first


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
        (RaisesWhat(SystemExit(3)), [], "agent_error", "SystemExit: 3"),
        (RaisesWhat(KeyboardInterrupt("mine")), [], "agent_error", "KeyboardInterrupt: mine"),
        (RaisesWhat(asyncio.CancelledError("mine")), [], "agent_error", "CancelledError"),
        (RaisesWhat(BaseExceptionGroup("several", [SystemExit(1)])), [], "agent_error", "several"),
        (RaisesWhat(TimeoutError("mine")), [], "agent_error", "TimeoutError: mine"),
        (RaisesWhat(ValueError("\ud800")), [], "agent_error", "ValueError: \\ud800"),
        (CancelsItself(), [], "agent_error", "CancelledError"),
        (NoCoroutine(), [], "agent_error", "SystemExit: 2"),
        (
            RaisesWhat(Unspeakable()),
            [],
            "agent_error",
            "Unspeakable: (its message is not available: SystemExit)",
        ),
        (Wraps(), [], "agent_error", "?, from OSError: [Errno 24] Too many open files"),
        (Rings(), [], "agent_error", "ValueError: first"),
        (AnswersNoText(), [], "agent_error", "solve returned bytes, not str"),
        (HangsUp(answers=False), [Reply(WRITE, delay_s=2.0)], "agent_error", "ReadTimeout"),
        (HangsUp(answers=True), [Reply(WRITE, delay_s=2.0)], "no_transitions", "without calling"),
        (LeavesACall(), [Reply(WRITE, delay_s=2.0)], "agent_error", "no patience"),
        (AsksForTools(), [Reply.failure(400, "no tools"), "yes"], "agent_error", "400"),
        (
            AsksForTools(),
            [Reply.failure(400, "no tools"), Reply.failure(400)],
            "endpoint_error",
            "no tools",
        ),
        (AsksForTools(), [Reply.failure(401, "no key")], "endpoint_error", "no key"),
        (Silent(), [], "no_transitions", "without calling"),
        (ReferenceSQL(), [Reply.failure(500)], "endpoint_error", "500"),
        (ReferenceSQL(), [WRITE, Reply.failure(429, retry_after="3600")], "endpoint_error", "429"),
        (Swallows(), [Reply.failure(503)], "endpoint_error", "503"),
        (
            ReferenceSQL(),
            [WRITE, Reply.failure(400, "maximum context length is 864")],
            "prompt_too_long",
            "864",
        ),
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


async def test_an_answer_is_taken_for_the_text_that_it_is(
    control: GatewayControl,
    gateway: GatewayServer,
    scripted_server: StartServer,
    request_: RolloutRequest,
) -> None:
    server = scripted_server([WRITE, f"Fine. {APPROVED}"])
    result = await attempt(control, gateway, server, AnswersSlippery(), request_)
    assert (result.outcome, result.answer, type(result.answer)) == (
        "ok",
        "SELECT name FROM singer",
        str,
    )
    assert (
        result.tool_calls[-1].arguments == {"sql": "SELECT name FROM singer"}
        and result.tool_calls[-1].ok
    )
    assert from_spans(to_spans(result)) == result


async def test_an_agent_that_hangs_up_once_is_judged_on_its_answer(
    control: GatewayControl,
    gateway: GatewayServer,
    scripted_server: StartServer,
    request_: RolloutRequest,
) -> None:
    class HangsUpLast(ReferenceSQL):
        async def solve(self, problem: Problem, toolbox: Toolbox) -> str:
            answer = await super().solve(problem, toolbox)
            await HangsUp(answers=True).solve(problem, toolbox)
            return answer

    server = scripted_server([WRITE, f"Fine. {APPROVED}", Reply(WRITE, delay_s=2.0)])
    result = await attempt(control, gateway, server, HangsUpLast(), request_)
    assert (result.outcome, result.answer) == ("ok", "SELECT name FROM singer")
    assert [failure.cause for failure in result.failures] == ["agent"]


async def test_a_request_of_its_own_that_is_wrong_is_the_agents_doing(
    control: GatewayControl,
    gateway: GatewayServer,
    scripted_server: StartServer,
    request_: RolloutRequest,
) -> None:
    replies = [WRITE, f"Fine. {APPROVED}"]
    result = await attempt(
        control, gateway, scripted_server(replies), AsksWrongly(gives_up=False), request_
    )
    assert (result.outcome, len(result.transitions), len(result.failures)) == ("ok", 2, 1)
    result = await attempt(
        control, gateway, scripted_server(replies), AsksWrongly(gives_up=True), request_
    )
    assert result.outcome == "agent_error" and "400" in result.detail
    assert result.failures[0].detail.startswith("bad_request: ")


def test_an_agent_that_leaves_from_a_task_of_its_own_costs_its_rollout_alone(
    gateway: GatewayServer, scripted_server: StartServer, request_: RolloutRequest
) -> None:
    server = scripted_server(lambda request: Reply(f"{WRITE} {APPROVED}", delay_s=0.2))
    results: list[Attempt] = []

    async def main() -> None:
        async with gateway.control() as control:
            agents = [ReferenceSQL(), Delegates(), ReferenceSQL()]
            results.extend(
                await asyncio.gather(
                    *(attempt(control, gateway, server, agent, request_) for agent in agents)
                )
            )

    keep_running(main())  # as a worker runs
    assert [result.outcome for result in results] == ["ok", "agent_error", "ok"]
    assert "SystemExit: 4" in results[1].detail


async def test_an_attempt_cancelled_from_outside_is_cancelled(
    control: GatewayControl,
    gateway: GatewayServer,
    scripted_server: StartServer,
    request_: RolloutRequest,
) -> None:
    agent = Sleeps()
    agent.stubborn = False
    task = asyncio.create_task(attempt(control, gateway, scripted_server([]), agent, request_))
    await asyncio.sleep(0.3)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_what_no_encoding_has_is_stored_as_its_escape(
    control: GatewayControl,
    gateway: GatewayServer,
    scripted_server: StartServer,
    request_: RolloutRequest,
) -> None:
    server = scripted_server([WRITE, f"Fine. {APPROVED}"])
    result = await attempt(control, gateway, server, Surrogates(), request_)
    assert (result.outcome, result.answer) == ("ok", "SELECT '\\udc00'")
    assert (
        result.tool_calls[-1].arguments == {"sql": "SELECT '\\ud83d'"} and result.tool_calls[-1].ok
    )
    spans = to_spans(result)
    [span.model_dump_json().encode() for span in spans]  # as the store gets them
    assert from_spans(spans) == result


@pytest.mark.slow
async def test_the_deadline_ends_an_agent_that_ignores_its_cancellation(
    control: GatewayControl,
    gateway: GatewayServer,
    scripted_server: StartServer,
    request_: RolloutRequest,
) -> None:
    began = time.monotonic()
    quick = dataclasses.replace(request_, timeout_s=0.3)
    agent = Sleeps()
    result = await attempt(control, gateway, scripted_server([]), agent, quick)
    assert result.outcome == "timeout"
    assert time.monotonic() - began < 8
    agent.stubborn = False  # the worker process would now be ended; this loop must be able to


@pytest.mark.slow
async def test_a_deadline_that_the_endpoint_used_up_is_the_endpoints(
    control: GatewayControl,
    gateway: GatewayServer,
    scripted_server: StartServer,
    request_: RolloutRequest,
) -> None:
    quick = dataclasses.replace(request_, timeout_s=3.0)  # the agent's imports are in it
    late = await attempt(
        control, gateway, scripted_server([Reply(WRITE, delay_s=9.0)]), ReferenceSQL(), quick
    )
    assert late.outcome == "endpoint_error" and "attempt_timeout" in late.detail


class NeverDone(ReferenceSQL):
    """Asks again and again, as an agent does whose loop has no end."""

    async def solve(self, problem: Problem, toolbox: Toolbox) -> str:
        while True:
            await self.ask(toolbox, toolbox.prompts.write(problem))


async def test_a_deadline_that_the_agent_used_up_is_the_agents(
    control: GatewayControl,
    gateway: GatewayServer,
    scripted_server: StartServer,
    request_: RolloutRequest,
) -> None:
    quick = dataclasses.replace(request_, timeout_s=1.5)
    result = await attempt(
        control, gateway, scripted_server(lambda request: WRITE), NeverDone(), quick
    )
    assert len(result.transitions) > 2 * request_.max_turns
    assert result.outcome == "timeout"


class HangsAfterCalls(ReferenceSQL):
    """Makes two calls at the same time, then waits for ever."""

    async def solve(self, problem: Problem, toolbox: Toolbox) -> str:
        prompt = toolbox.prompts.write(problem)
        await asyncio.gather(self.ask(toolbox, prompt), self.ask(toolbox, prompt))
        await asyncio.sleep(60)
        return "never"


@pytest.mark.slow
async def test_calls_at_the_same_time_do_not_count_twice_for_the_endpoint(
    control: GatewayControl,
    gateway: GatewayServer,
    scripted_server: StartServer,
    request_: RolloutRequest,
) -> None:
    server = scripted_server(lambda request: Reply(WRITE, delay_s=1.2))
    result = await attempt(control, gateway, server, HangsAfterCalls(), request_)
    assert len(result.transitions) == 2
    assert sum(call.latency_s for call in result.transitions) > request_.timeout_s / 2
    assert result.outcome == "timeout"


def test_rollout_seeds_differ_by_everything_that_names_a_rollout() -> None:
    seeds = {
        rollout_seed(seed, phase, step, task, session)  # type: ignore[arg-type]
        for seed in (0, 1)
        for phase in ("train", "val")
        for step in (1, 2)
        for task in ("a", "b")
        for session in (0, 1)
    }
    assert len(seeds) == 32 and max(seeds) < 2**31

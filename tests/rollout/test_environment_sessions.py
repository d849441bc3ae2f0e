"""An attempt has a session of its own, closed however it ends, and the session's faults score nothing. Real gateway."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Any

import httpx
import pytest

from harness.contracts.environments import Environment, Observation, Tool, check_offered
from harness.contracts.toolbox import Agent, Toolbox
from harness.errors import EnvironmentFault, PluginError, RolloutError
from harness.gateway.client import GatewayControl
from harness.gateway.server import GatewayServer
from harness.mock_model.server import Reply
from harness.records import INFRASTRUCTURE_OUTCOMES, JSON, Attempt, Problem, Task
from harness.rollout import host, tools
from harness.rollout.json_values import STATE_BYTES
from harness.rollout.request import RolloutRequest
from harness.testing.environment_contract import EnvironmentContract
from harness.testing.fixtures import StartServer
from harness.util import clock
from harness_agentlightning_queue.spans import from_spans, to_spans
from harness_sql.tool_loop.reference import ReferenceTools
from harness_sql.tool_loop.scenarios import calling


class Pages:
    """What an attempt wrote down."""

    def __init__(self, of: Notebook) -> None:
        self._of = of
        self.notes: list[JSON] = []

    async def call(self, tool: str, arguments: Mapping[str, Any]) -> Observation:
        text = arguments["text"]
        if text == "break":
            raise EnvironmentFault("the ink\nran out")
        if text == "hang":
            await asyncio.sleep(60)
        self.notes.append(text)
        return Observation(f"{len(self.notes)} notes")

    async def close(self) -> Mapping[str, JSON]:
        self._of.closed += 1
        if "hang while closing" in self.notes:
            await asyncio.sleep(60)
        if "lose" in self.notes:
            raise EnvironmentFault("the pages are gone")
        if "endless" in self.notes:
            return {"notes": "x" * STATE_BYTES}
        return {"notes": self.notes}


class Notebook(Environment):
    """Notes, of which every attempt begins with none."""

    tools = (
        Tool(
            "note",
            "Write a note down.",
            {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]},
        ),
    )
    opened = closed = 0
    ready_s = 0.0
    """Unix time."""

    def check(self, payload: Mapping[str, Any]) -> None:
        if payload.get("missing"):
            raise RolloutError("no paper at /shelf: fetch some")

    async def ready(self, payload: Mapping[str, object]) -> None:
        if payload.get("torn"):
            raise RuntimeError("the index is torn")
        await asyncio.sleep(60 if payload.get("loads") else 0.05)
        self.ready_s = clock.now()

    def payload(self, task: Task, limits: Mapping[str, Any]) -> Mapping[str, Any]:
        return {}

    async def open(self, payload: Mapping[str, Any], attempt: str) -> Pages:
        if payload.get("broken"):
            raise EnvironmentFault("no paper")
        if payload.get("slow"):
            await asyncio.sleep(60)
        self.opened += 1
        return Pages(self)


@pytest.fixture
def notebook(monkeypatch: pytest.MonkeyPatch) -> Notebook:
    made = Notebook()
    monkeypatch.setattr(tools, "environment", lambda name: made)
    monkeypatch.setattr(tools, "READY_S", 0.5)
    monkeypatch.setattr(tools, "OPEN_S", 0.5)
    monkeypatch.setattr(tools, "CLOSE_S", 0.5)
    return made


def asked(timeout_s: float = 20.0, **payload: bool) -> RolloutRequest:
    return RolloutRequest(
        problem=Problem("t", "?"),
        program="tool_loop",
        environment="notebook",
        payload=payload,
        phase="train",
        max_turns=5,
        sampling={"temperature": 0.7, "top_p": 1.0, "max_tokens": 32, "seed": 11},
        tool_timeout_s=30.0,
        timeout_s=timeout_s,
        retries=0,
    )


def notes(*texts: str) -> list[Reply]:
    return [*(calling(("note", f'{{"text": "{text}"}}')) for text in texts), Reply("Done.")]


class Stage:
    def __init__(self, control: GatewayControl, gateway: GatewayServer, start: StartServer) -> None:
        self._control, self._gateway, self._start = control, gateway, start

    async def play(
        self,
        replies: list[Reply],
        agent: Agent | None = None,
        request: RolloutRequest | None = None,
    ) -> Attempt:
        server = self._start(replies)
        await self._control.set_upstreams([server.base_url], model="scripted", token_ids=True)
        async with httpx.AsyncClient(timeout=None) as http:
            rollout, key = f"r-{time.time_ns()}", self._gateway.key
            return await host.run_attempt(
                agent or ReferenceTools(),
                request or asked(),
                rollout,
                "a",
                self._control,
                key,
                "scripted",
                http,
            )


@pytest.fixture
def stage(control: GatewayControl, gateway: GatewayServer, scripted_server: StartServer) -> Stage:
    return Stage(control, gateway, scripted_server)


async def test_what_a_session_leaves_behind_reaches_the_attempt_across_processes(
    stage: Stage, notebook: Notebook
) -> None:
    done = await stage.play(notes("a", "b"))
    assert (done.outcome, done.state) == ("ok", {"notes": ["a", "b"]})
    assert from_spans(to_spans(done)) == done
    again = await stage.play(notes("c"))
    assert again.state == {"notes": ["c"]} and (notebook.opened, notebook.closed) == (2, 2)


async def test_what_an_environment_loads_is_waited_for_before_the_attempt_s_clock_starts(
    stage: Stage, notebook: Notebook
) -> None:
    done = await stage.play(notes("a"))
    assert 0.0 < notebook.ready_s <= done.started_s


class Raises(ReferenceTools):
    async def solve(self, problem: Problem, toolbox: Toolbox) -> str:
        await toolbox.call("note", {"text": "a"})
        raise KeyError("a bug of the plugin")


class Swallows(ReferenceTools):
    """Goes on whatever a tool raises, as some frameworks do."""

    async def solve(self, problem: Problem, toolbox: Toolbox) -> str:
        for _ in range(100):
            try:
                await toolbox.call("note", {"text": "break"})
            except EnvironmentFault:
                await asyncio.sleep(0.1)
        return "Done."


async def test_a_session_is_closed_however_the_attempt_ends(
    stage: Stage, notebook: Notebook
) -> None:
    raised = await stage.play([], Raises())
    assert (raised.outcome, raised.state) == ("agent_error", {"notes": ["a"]})
    late = await stage.play(notes("a", "hang"), request=asked(timeout_s=1.0))
    assert (late.outcome, late.state) == ("timeout", {"notes": ["a"]})
    cancelled = asyncio.ensure_future(stage.play(notes("a", "hang")))
    while notebook.opened < 3:
        await asyncio.sleep(0.01)
    cancelled.cancel()
    with pytest.raises(asyncio.CancelledError):
        await cancelled
    assert (notebook.opened, notebook.closed) == (3, 3)


@pytest.mark.parametrize(
    ("texts", "detail"),
    [
        (["a", "break", "b"], "environment 'notebook': the ink ran out"),
        (["hang while closing"], "environment 'notebook': did not close its session within 0.5 s"),
        (["lose"], "environment 'notebook': the pages are gone"),
        (["endless"], "environment 'notebook': left a state of "),
    ],
)
async def test_a_fault_of_the_environment_is_no_failure_of_the_agent(
    stage: Stage, notebook: Notebook, texts: list[str], detail: str
) -> None:
    done = await stage.play(notes(*texts))
    assert (done.outcome, done.answer) == (
        "environment_error",
        None,
    ) and done.outcome in INFRASTRUCTURE_OUTCOMES
    assert done.detail.startswith(detail)
    assert (notebook.opened, notebook.closed) == (1, 1)


@pytest.mark.parametrize(
    ("payload", "detail"),
    [
        ("missing", "RolloutError: no paper at /shelf: fetch some"),
        ("torn", "RuntimeError: the index is torn"),
        ("loads", "was not ready within 0.5 s"),
        ("broken", "no paper"),
        ("slow", "opened no session within 0.5 s"),
    ],
)
async def test_without_a_session_the_agent_is_not_asked(
    stage: Stage, notebook: Notebook, payload: str, detail: str
) -> None:
    done = await stage.play(notes("a"), request=asked(**{payload: True}))
    assert (done.outcome, done.detail) == ("environment_error", f"environment 'notebook': {detail}")
    assert not done.transitions and not done.failures and not notebook.opened


async def test_a_fault_ends_an_agent_that_does_not_mind(stage: Stage, notebook: Notebook) -> None:
    done = await stage.play([], Swallows())
    assert done.outcome == "environment_error" and done.elapsed_s < 9, "100 calls of 0.1 s each"


async def test_what_an_agent_did_itself_is_not_excused_by_a_session_that_closes_badly(
    stage: Stage, notebook: Notebook
) -> None:
    class LosesAndRaises(ReferenceTools):
        async def solve(self, problem: Problem, toolbox: Toolbox) -> str:
            await toolbox.call("note", {"text": "lose"})
            raise KeyError("a bug of the plugin")

    assert (await stage.play([], LosesAndRaises())).outcome == "agent_error"


def test_other_tools_than_the_payload_says_are_refused_by_name() -> None:
    (tool,) = Notebook.tools
    check_offered([tool], [Tool("more", "", {}), tool])
    with pytest.raises(EnvironmentFault, match="'note' is not offered"):
        check_offered([tool], [])
    with pytest.raises(EnvironmentFault, match="'note' has changed"):
        check_offered([tool], [Tool("note", tool.description, {"type": "object"})])


def test_a_class_that_is_no_environment_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    from harness import plugins

    monkeypatch.setattr(plugins, "load", lambda spec: Pages)
    monkeypatch.setattr(Pages, "__init__", lambda self: None)
    with pytest.raises(PluginError, match=r"write `class Pages\(harness.Environment\)`"):
        plugins.environment.__wrapped__("sql")


class OfNotebook(EnvironmentContract):
    """The contract holds for an environment that keeps state, and finds out one that shares it."""

    __test__ = False
    environment = "notebook"
    calls = (("note", {"text": "a"}),)
    changing = ("note", {"text": "b"})


def test_the_contract_finds_attempts_that_see_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    tasks = [Task("t", "notes", "val", "?", "a long enough gold")]
    made = Notebook()
    monkeypatch.setattr(tools, "environment", lambda name: made)
    OfNotebook().test_no_attempt_sees_what_another_one_changed(made, tasks)
    OfNotebook().test_a_session_closes_in_time_also_amid_a_call(made, tasks)

    class Shared(Notebook):
        async def open(self, payload: Mapping[str, Any], attempt: str) -> Pages:
            return one

    one, made = Pages(made), Shared()
    with pytest.raises(AssertionError, match="sees it|opened after the change"):
        OfNotebook().test_no_attempt_sees_what_another_one_changed(made, tasks)

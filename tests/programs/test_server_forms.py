"""Answers in the forms of real servers: every framework's strict agents do the same about each."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
import pytest

from harness.contracts.toolbox import Agent
from harness.gateway.client import GatewayControl
from harness.gateway.server import GatewayServer
from harness.mock_model.completion import Reply
from harness.mock_model.server import ReceivedRequest, ScriptedServer
from harness.parity.recorder import SAMPLING, staged_request
from harness.plugins import agent_spec, load, program
from harness.records import Attempt
from harness.rollout.host import run_attempt

from .server_forms import COUNT, FORMS, Form

FRAMEWORKS = (
    "reference",
    "langgraph",
    "openai_agents",
    "autogen",
    "crewai",
    "agent_framework",
    "pydantic_ai",
)
PATIENCE_S = 300.0
AT_ONCE = 6
"""Attempts under way: enough to be quick, few enough for a busy machine."""
PROBE = "Hello."
"""What the gateway asks to learn whether a server takes the run's own parameters."""
BY_NUMBER = {str(number): form for number, form in enumerate(FORMS)}


class Server:
    """Answers each rollout in its own form."""

    def __init__(self) -> None:
        self._asked: Counter[str] = Counter()

    def __call__(self, request: ReceivedRequest) -> Reply:
        if request.messages[0]["content"] == PROBE:
            return Reply("yes")
        user = request.body["user"]
        number = self._asked[user]
        self._asked[user] += 1
        return BY_NUMBER[user].reply(number)


async def played(agent: Agent, folder: Path) -> dict[str, Attempt]:
    """Return what an agent makes of every form."""
    of = "tool_loop"
    (scenario,) = [one for one in program(of).scenarios if one.name == "one_call"]
    with ScriptedServer(Server(), token_ids=False) as server, GatewayServer() as gateway:
        async with (
            # A framework that computes holds the loop, on a busy machine for longer than a control call may take.
            GatewayControl(gateway.base_url, gateway.control_key, timeout_s=PATIENCE_S) as control,
            httpx.AsyncClient(trust_env=False, timeout=None) as http_client,
        ):
            await control.set_upstreams([server.base_url], model=server.model, token_ids=False)

            room = asyncio.Semaphore(AT_ONCE)

            async def play(number: str) -> Attempt:
                sampling = {**SAMPLING, "user": number}
                request = staged_request(
                    of, scenario, folder, timeout_s=PATIENCE_S, sampling=sampling
                )
                async with room:
                    return await run_attempt(
                        agent, request, number, "1", control, gateway.key, "scripted", http_client
                    )

            attempts = await asyncio.gather(*map(play, BY_NUMBER))
    return {form.name: attempt for form, attempt in zip(FORMS, attempts, strict=True)}


def seen(attempt: Attempt) -> Any:
    """Return what an attempt came to: outcome, answer, tool calls, requests to the policy."""
    return (
        attempt.outcome,
        attempt.answer,
        [(call.tool, dict(call.arguments), call.fault) for call in attempt.tool_calls],
        [list(call.messages) for call in attempt.transitions],
    )


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Attempt]:
    """What the reference makes of every form."""
    agent = load(agent_spec("reference_tools"))()
    return asyncio.run(played(agent, tmp_path_factory.mktemp("reference")))


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
def test_every_form_is_accepted_or_refused_as_the_table_says(
    reference: dict[str, Attempt], form: Form
) -> None:
    attempt = reference[form.name]
    assert (attempt.outcome, attempt.detail) == (form.outcome, attempt.detail)
    assert form.detail in attempt.detail
    executed = [call.arguments for call in attempt.tool_calls if not call.fault]
    assert [call.fault for call in attempt.tool_calls] == [form.fault] * form.calls
    assert executed == ([{"sql": COUNT}] if form.calls and not form.fault else [])
    if form.outcome == "ok":
        assert attempt.answer == form.answer and not attempt.failures
        assert len(attempt.transitions) == 2
        calls = [call for one in attempt.transitions for call in one.tool_calls]
        assert all(call["id"] and call["type"] == "function" for call in calls)
    else:
        # A call leaves a transition or a failure, never both.
        indices = [call.index for call in (*attempt.transitions, *attempt.failures)]
        assert attempt.answer is None and len(indices) == len(set(indices))


@pytest.mark.parametrize("framework", FRAMEWORKS[1:])
def test_every_form_is_the_same_to_every_framework(
    framework: str, reference: dict[str, Attempt], tmp_path: Path
) -> None:
    agent = load(agent_spec(f"{framework}_tools"))()
    found = asyncio.run(played(agent, tmp_path))
    different = {
        name: seen(one) for name, one in found.items() if seen(one) != seen(reference[name])
    }
    assert not different, "\n".join(
        f"{name}: {value}\nexpected {seen(reference[name])}" for name, value in different.items()
    )


def test_the_table_is_in_the_documentation() -> None:
    page = (Path(__file__).parents[2] / "docs" / "gateway.md").read_text()
    table = page.partition("### What is accepted")[2].partition("\n### ")[0]
    assert [form.name for form in FORMS if f"| {form.name} |" not in table] == []

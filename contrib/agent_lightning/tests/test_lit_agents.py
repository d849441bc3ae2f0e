"""Agents of Agent Lightning, through a real gateway against a scripted model."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from harness.contracts.programs import CANARY
from harness.gateway.server import GatewayServer
from harness.mock_model.completion import Reply
from harness.plugins import agent_spec, load, program, reward_spec
from harness.records import Attempt, Task
from harness.testing.calls import transition
from harness.testing.contract import AgentContract
from harness.testing.stage import staged
from harness_agent_lightning.reward import FromAgent

AGENTS = Path(__file__).with_name("agents")


class TestAsynchronous(AgentContract):
    agent = f"{AGENTS}/loops.py:AsyncLoop"
    has_own_client = True


@pytest.fixture(scope="module")
def gateway():
    with GatewayServer() as server:
        yield server


def played(name, gateway, folder, *replies, phase="val", times=1):
    """Attempts of an agent, all at once, and the requests that the model got."""
    spec = agent_spec(f"{AGENTS}/{name}")
    agent, of = load(spec)(), spec.program
    folder.mkdir(exist_ok=True)
    scenario = program(of).scenarios[0]

    async def play():
        scripts = iter(replies * times)
        async with staged(of, scenario, gateway, folder, lambda _: next(scripts)) as stage:
            request = replace(stage.request(), phase=phase)
            attempts = await asyncio.gather(
                *(stage.attempt(agent, f"{folder.name}-{n}", request) for n in range(times))
            )
            return attempts, [call.raw for call in stage.tap.calls]

    return asyncio.run(play())


def test_a_graph_is_run_as_it_is_with_the_roles_of_its_nodes(gateway, tmp_path):
    replies = Reply("```sql\nSELECT 1\n```"), Reply("THE QUERY IS CORRECT.")
    (attempt,), sent = played("graph.py:SyncGraph", gateway, tmp_path, *replies)
    assert attempt.outcome == "ok", attempt.detail
    assert [call.role for call in attempt.transitions] == ["write_query", "check_query"]
    assert attempt.answer == "SELECT 1"
    assert attempt.reported == 0.25
    assert all(call.response_ids for call in attempt.transitions)
    assert not any(CANARY.encode() in raw for raw in sent)


def test_a_model_that_refuses_every_call_is_the_endpoints_failure(gateway, tmp_path):
    (attempt,), _ = played("graph.py:SyncGraph", gateway, tmp_path, Reply.failure(500))
    assert attempt.outcome == "endpoint_error", attempt.detail


def test_a_refused_call_that_the_agent_replaces_has_its_role_and_its_code(gateway, tmp_path):
    too_long = Reply.failure(400, "This model's maximum context length is 9 tokens.")
    replies = Reply("```sql\nSELECT 1\n```"), too_long, Reply("SELECT 2")
    (attempt,), _ = played("graph.py:Persistent", gateway, tmp_path, *replies)
    assert attempt.outcome == "ok", attempt.detail
    assert [call.role for call in attempt.transitions] == ["write_query", "check_query"]
    failed = [(call.role, call.code) for call in attempt.failures]
    assert failed == [("check_query", "prompt_too_long")]


def test_each_phase_has_its_own_rollout_and_an_emitted_reward_counts(gateway, tmp_path):
    (trained,), _ = played("loops.py:Phases", gateway, tmp_path / "1", Reply("yes"), phase="train")
    (validated,), _ = played("loops.py:Phases", gateway, tmp_path / "2", Reply("yes"))
    assert (trained.outcome, validated.outcome) == ("ok", "ok"), (trained, validated)
    assert str(trained.transitions[0].messages[0]["content"]) == "training"
    assert str(validated.transitions[0].messages[0]["content"]) == "validation"
    assert (trained.reported, validated.reported) == (0.75, None)


def test_rewards_of_rollouts_at_once_stay_apart(gateway, tmp_path):
    attempts, _ = played("loops.py:Phases", gateway, tmp_path, Reply("yes"), phase="train", times=8)
    assert [one.outcome for one in attempts] == ["ok"] * 8
    assert [one.reported for one in attempts] == [0.75] * 8


def test_a_decorated_function_is_an_agent(gateway, tmp_path):
    spec = agent_spec(f"{AGENTS}/loops.py:decorated@tool_loop")
    assert not spec.strict and spec.roles == ("assistant",)
    (attempt,), _ = played("loops.py:decorated@tool_loop", gateway, tmp_path, Reply("42"))
    assert (attempt.outcome, attempt.answer, attempt.reported) == ("ok", "42", 1.0)


def test_gold_is_not_in_a_task_and_the_error_says_so(gateway, tmp_path):
    (attempt,), _ = played("loops.py:Greedy", gateway, tmp_path, Reply("-"))
    assert attempt.outcome == "agent_error"
    assert "Agents get no gold" in attempt.detail


def attempt_with(reported):
    return Attempt(
        "r",
        "1",
        "ok",
        "",
        "an answer",
        (transition("assistant"),),
        (),
        (),
        0.0,
        1.0,
        reported=reported,
    )


@pytest.mark.parametrize("reported", [0.0, 0.5, 1.0, None])
async def test_the_reward_is_what_the_agent_gave_or_unscored(reported):
    task = Task("t", "set", "val", "?", "gold")
    assert (await FromAgent().score(task, attempt_with(reported))).value == reported


def test_a_range_of_the_agents_rewards_may_be_stated():
    assert reward_spec("from_agent").ranged

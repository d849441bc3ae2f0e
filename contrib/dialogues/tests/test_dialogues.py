"""Dialogues keep the contracts, go the same in every framework, and the user's instructions stay the user's."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from harness import (
    Attempt,
    EnvironmentContract,
    ProgramContract,
    RewardContract,
    Task,
    TaskSetContract,
)
from harness.contracts.programs import Scenario
from harness.gateway.server import GatewayServer
from harness.parity.comparison import compare
from harness.parity.recorder import LIMITS, record
from harness.plugins import agent_spec, agents_of, environment, load, trained_by
from harness.records import JSON, Problem
from harness.testing.calls import transition
from harness.testing.contract import AgentContract
from harness.testing.stage import staged
from harness_dialogues.desk.scripted import script
from harness_dialogues.desk.tasks import OrderDeskTasks
from harness_dialogues.desk.world import RULES
from harness_dialogues.reference import ReferenceDialogue
from harness_dialogues.reward import NOT_ENDED, EndState
from harness_dialogues.roles import USER
from harness_dialogues.scenarios import PRIVATE

TASKS = OrderDeskTasks(train_size=40, val_size=40)
DESK = {
    "customers": {"C1": {"name": "Ana Berg", "postcode": "10115"}},
    "orders": {
        number: {
            "customer": "C1",
            "article": "rain jacket",
            "size": "M",
            "street": "1 Mill Lane",
            "town": "Brook",
            "status": status,
            "days_since_delivery": days,
        }
        for number, status, days in (
            ("1001", "being packed", None),
            ("1002", "shipped", None),
            ("1003", "delivered", 45),
        )
    },
    "stock": {"rain jacket": {"S": 0, "M": 2, "L": 1}},
}
TASK = Task(
    "t", "order_desk", "val", "You are Ana.", '{"1001": {"size": "L"}}', data={"world": DESK}
)


class TestProgram(ProgramContract):
    program = "dialogue"


class TestReference(AgentContract):
    agent = "reference_dialogue"


class TestTasks(TaskSetContract):
    task_set = "order_desk"


class TestEnvironment(EnvironmentContract):
    environment = "order_desk"
    calls = (
        ("find_customer", {"name": "Ana Berg", "postcode": "10115"}),
        ("show_order", {"order": "1001"}),
        ("show_stock", {"article": "rain jacket"}),
        ("change_address", {"order": "1001", "street": "2 Mill Lane", "town": "Brook"}),
        ("change_size", {"order": "1001", "size": "L"}),
        ("take_back", {"order": "1003"}),
        ("cancel_order", {"order": "1001", "reason": "no longer needed"}),
    )
    changing = ("change_size", {"order": "1001", "size": "L"})

    @pytest.fixture(scope="class")
    @classmethod
    def tasks(cls) -> Sequence[Task]:
        return [TASK, *TASKS.load("val")]


class TestReward(RewardContract):
    reward = "end_state"

    @classmethod
    def left(cls, answer: str | None) -> Mapping[str, JSON] | None:
        try:
            state = json.loads(answer or "")
        except ValueError:
            return None
        return state if isinstance(state, dict) else None

    @pytest.fixture(scope="class")
    @classmethod
    def tasks(cls) -> Sequence[Task]:
        return [TASK, *TASKS.load("val")[:10]]


@pytest.mark.slow
def test_every_framework_sends_what_the_reference_sends() -> None:
    pytest.importorskip("crewai")
    strict = [
        name
        for name in agents_of("dialogue")
        if agent_spec(name).strict and name != "reference_dialogue"
    ]
    assert len(strict) == 5, strict
    expected = asyncio.run(record(ReferenceDialogue(), "dialogue", plays=["alone"]))
    private = [
        (one.label, call.role)
        for one in expected
        for call in one.calls
        if PRIVATE in str(call.messages)
    ]
    asked = {
        (one.label, call.role)
        for one in expected
        for call in one.calls
        if one.scenario != "template_characters"
    }
    assert {role for _, role in private} == {USER}, "an agent was told what only the user knows"
    assert {*private} == {(label, role) for label, role in asked if role == USER}
    for name in strict:
        verdict = compare(
            name,
            asyncio.run(record(load(agent_spec(name))(), "dialogue", plays=["alone"])),
            expected,
        )
        assert verdict.passed and verdict.calls_compared > 200, "\n".join(
            map(str, verdict.mismatches)
        )


@pytest.mark.slow
def test_the_desk_goes_the_same_in_every_framework(tmp_path: Path) -> None:
    pytest.importorskip("crewai")
    task = next(task for task in TASKS.load("val") if task.difficulty == "2 of 2 wishes granted")
    scenario = Scenario(
        "desk",
        "a whole conversation",
        (),
        task.question,
        options={"environment": "sql"},
        max_turns=6,
    )

    async def play(name: str) -> tuple[Attempt, list[str]]:
        async with staged("dialogue", scenario, gateway, tmp_path, script) as stage:
            request = stage.request(
                environment="order_desk",
                payload=environment("order_desk").payload(task, {**LIMITS, "max_chars": 2000}),
                problem=Problem(task.id, task.question, TASKS.context(task)),
            )
            attempt = await stage.attempt(load(agent_spec(name))(), name, request)
            return attempt, [
                json.dumps((call.body or {})["messages"], sort_keys=True)
                for call in stage.tap.calls
            ]

    with GatewayServer() as gateway:
        found = {name: asyncio.run(play(name)) for name in agents_of("dialogue")}
    attempt, sent = found["reference_dialogue"]
    assert attempt.state == json.loads(task.gold) and len(attempt.tool_calls) == 5, attempt
    agent = [call for call in attempt.transitions if call.role != USER]
    assert all(RULES in str(call.messages[0]["content"]) for call in agent)
    wish = task.question.splitlines()[2]
    assert not any(wish in str(call.messages) for call in agent), "the line of the instructions"
    for name, (other, messages) in found.items():
        assert (messages, other.state, other.answer) == (sent, attempt.state, attempt.answer), name


def test_who_ended_a_conversation_is_told_apart() -> None:
    def ended(*roles: str) -> tuple[float | None, tuple[str, ...]]:
        calls = tuple(transition(role, index) for index, role in enumerate(roles))
        attempt = Attempt("r", "1", "ok", "", "", calls, (), (), 0.0, 0.0, {"1001": {"size": "L"}})
        verdict = asyncio.run(EndState().score(TASK, attempt))
        return verdict.value, verdict.flags

    assert ended("user", "agent", "user") == (1.0, ())
    assert ended("user", "agent", "user", "agent") == (1.0, (NOT_ENDED,))
    assert ended("assistant") == (1.0, ()), "an agent of another program has no user"


@pytest.mark.parametrize(
    ("state", "value"),
    [
        ({"1001": {"size": "L"}}, 1.0),
        ({}, 0.0),
        ({"1001": {"size": "S"}}, 0.0),
        ({"1001": {"size": "L"}, "1002": {"status": "cancelled"}}, 0.0),
        ({"1001": {"size": "L"}, "1002": None}, 0.0),
        (None, None),
    ],
)
def test_the_end_state_alone_is_judged(
    state: Mapping[str, JSON] | None, value: float | None
) -> None:
    attempt = Attempt("r", "1", "ok", "", "Done.", (), (), (), 0.0, 0.0, state)
    assert asyncio.run(EndState().score(TASK, attempt)).value == value


def test_the_user_is_not_trained_where_nobody_names_it() -> None:
    assert trained_by("reference_dialogue") == "agent"
    assert trained_by("reference_dialogue", "user|agent") == "user|agent"


def test_the_desk_is_balanced_and_no_gold_is_what_the_world_says() -> None:
    tasks = OrderDeskTasks().load("train")
    granted = [len(json.loads(task.gold)) for task in tasks]
    assert 0.2 < granted.count(0) / len(tasks) < 0.6, (
        "to change nothing is not enough, nor is to change all"
    )
    assert {*granted} == {0, 1, 2}
    assert len({task.question for task in tasks + list(OrderDeskTasks().load("val"))}) == 500
    assert [task.gold for task in OrderDeskTasks(seed=1).load("train")] != [
        task.gold for task in tasks
    ]


def test_a_gold_that_is_no_state_is_refused_before_a_run() -> None:
    assert not EndState().refuses(TASK)
    for gold in ("three", "[1]", "3"):
        assert "no JSON object" in EndState().refuses(Task("t", "x", "val", "?", gold))

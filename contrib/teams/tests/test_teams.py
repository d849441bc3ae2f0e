"""Teams: their contracts, what is the same however fast who is, and how they fail."""

from __future__ import annotations

import asyncio
import random
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness import (
    Attempt,
    EnvironmentContract,
    GatewayServer,
    ProgramContract,
    Reply,
    RewardContract,
    Scenario,
    Task,
    TaskSetContract,
    Transition,
)
from harness.plugins import agent_spec, agents_of, load, program
from harness.testing.stage import staged
from harness_teams.names import PASSES
from harness_teams.reward import Stated
from harness_teams.tasks import PocketSplitTasks
from harness_teams.workers import AT_ONCE

TEAMS = sorted(agents_of("team"))
IDIOMATIC = [one for one in TEAMS if not agent_spec(one).strict]


class TestProgram(ProgramContract):
    program = "team"


class TestEnvironment(EnvironmentContract):
    environment = "split_sql"
    calls = (("query_a", {"sql": "SELECT 1"}), ("query_b", {"sql": "SELECT 2"}))

    @pytest.fixture(scope="class")
    @classmethod
    def tasks(cls) -> Sequence[Task]:
        return PocketSplitTasks().load("val")[:4]


class TestTasks(TaskSetContract):
    task_set = "pocket_split"


class TestReward(RewardContract):
    reward = "stated"

    @pytest.fixture(scope="class")
    @classmethod
    def tasks(cls) -> Sequence[Task]:
        return PocketSplitTasks().load("val")[:4]

    @pytest.fixture(scope="class")
    @classmethod
    def unscorable(cls) -> Sequence[Task]:
        return [replace(PocketSplitTasks().load("val")[0], data={"facts": [], "gold_is": "answer"})]


def _scenario(name: str) -> Scenario:
    return next(one for one in program("team").scenarios if one.name == name)


def _played(name: str, agent: str, script: Any = None, **changes: Any) -> Attempt:
    """An attempt at a scenario."""

    async def play() -> Attempt:
        with GatewayServer() as gateway, tempfile.TemporaryDirectory() as folder:
            async with staged("team", _scenario(name), gateway, Path(folder), script) as stage:
                request = stage.request(**changes)
                request = replace(request, sampling={**request.sampling, "seed": 7})
                return await stage.attempt(load(agent_spec(agent))(), f"{name}-{agent}", request)

    return asyncio.run(play())


def spans_of(attempt: Attempt) -> list[tuple[object, ...]]:
    calls: Sequence[Transition] = attempt.transitions
    return [
        *(
            (one.index, one.role, one.branch, one.sampling["seed"], one.response_text)
            for one in calls
        ),
        *((one.tool, one.branch, dict(one.arguments), one.text) for one in attempt.tool_calls),
        (attempt.outcome, attempt.answer),
    ]


class _Shuffled:
    """A scenario's script whose every reply takes a time of its own."""

    def __init__(self, name: str, seed: int) -> None:
        self._script = program("team").script(_scenario(name))
        self._times = random.Random(seed)

    def __call__(self, request: Any) -> Reply:
        return replace(self._script(request), delay_s=self._times.choice((0.0, 0.05, 0.2)))


@pytest.mark.slow
@pytest.mark.parametrize("agent", TEAMS)
def test_seeds_order_and_records_do_not_depend_on_who_is_faster(agent: str) -> None:
    for name in ("at_once", "one_worker_twice"):
        first, *others = [
            spans_of(_played(name, agent, _Shuffled(name, seed))) for seed in range(3)
        ]
        assert all(other == first for other in others), name
        branches = [row[2] for row in first if row[1] in ("worker_a", "worker_b")]
        assert branches == sorted(map(str, branches)) and {*branches} == {"1", "2"}
        seeds = [row[3] for row in first if len(row) == 5]
        assert len(set(seeds)) == len(seeds), "two calls drew with one seed"


@pytest.mark.parametrize("agent", TEAMS)
def test_a_worker_that_dies_is_never_a_zero_whatever_another_one_answers_meanwhile(
    agent: str,
) -> None:
    script = program("team").script(_scenario("at_once"))

    def dies(request: Any) -> Reply:
        reply = script(request)
        if "singers 1 and 2" in str(request.messages[1]["content"]):
            return replace(reply, delay_s=0.3) if len(request.messages) == 2 else reply
        return (
            Reply.failure(500)
            if request.messages[-1]["role"] == "tool" and len(request.messages) == 4
            else reply
        )

    def first_worker_dies(request: Any) -> Reply:
        planner = "You lead workers" in str(request.messages[0]["content"])
        return script(request) if planner else dies(request)

    attempt = _played("at_once", agent, first_worker_dies)
    assert attempt.outcome == "endpoint_error", (attempt.outcome, attempt.detail)
    assert attempt.answer is None


@pytest.mark.parametrize("agent", [one for one in TEAMS if one not in IDIOMATIC])
def test_handing_over_for_ever_ends_and_counts_as_an_answer(agent: str) -> None:
    attempt = _played("back_and_forth", agent)
    rounds = _scenario("back_and_forth").max_turns
    assert attempt.outcome == "ok"
    assert sum(call.role == "planner" for call in attempt.transitions) == PASSES * (rounds + 1)


@pytest.mark.parametrize("agent", IDIOMATIC)
def test_a_framework_s_own_team_that_hands_over_for_ever_ends_too(agent: str) -> None:
    attempt = _played("back_and_forth", agent)
    assert attempt.outcome == "ok"
    assert (
        1 < sum(call.role == "planner" for call in attempt.transitions) < 8
    )  # the script would go on


def test_ten_at_once_are_four_and_six_that_are_told_so() -> None:
    attempt = _played("ten_at_once", "reference_team")
    texts = [call.text for call in attempt.tool_calls if call.tool.startswith("transfer")]
    assert [text.startswith("did") for text in texts] == [True] * AT_ONCE + [False] * 6
    assert all("Hand this one over again" in text for text in texts[AT_ONCE:])


def test_calls_go_with_the_answer_of_their_pass() -> None:
    attempt = _played("wrong_then_fixed", "reference_team")
    turns = program("team").turns(attempt)
    assert [turn.approved for turn in turns if turn.approved is not None] == [False]
    answers = [turn.answer for turn in turns]
    assert answers == ["They cost 20."] * 5 + ["They cost 55."] * 4
    assert attempt.answer == answers[-1]


def test_only_an_answer_with_all_facts_and_no_other_number_is_right() -> None:
    task = next(task for task in PocketSplitTasks().load("val") if task.difficulty == "both")

    def value(answer: str) -> float | None:
        attempt = Attempt("r", "a", "ok", "", answer, (), (), (), 0.0, 0.0)
        return asyncio.run(Stated().score(task, attempt)).value

    there, done = task.data["facts"]
    assert value(task.gold) == 1.0 and value(f"{there}, {done}") == 1.0
    assert (
        value(f"There are {there}.") == 0.0 and value(f"{task.gold} Or {int(there) + 997}.") == 0.0
    )

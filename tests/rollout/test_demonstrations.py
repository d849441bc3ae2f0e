"""Demonstrations on their way to the gateway, and the calls that can become some."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from harness.config import load_config
from harness.contracts.programs import Turn
from harness.plugins import make_task_set
from harness.records import Attempt
from harness.rollout.request import RolloutRequest
from harness.rollout.scored import agreeing
from harness.testing.calls import transition

PAIR = [{"role": "user", "content": "One?"}, {"role": "assistant", "content": "1"}]


def request() -> RolloutRequest:
    config = load_config("cpu", agent="reference_sql")
    tasks = make_task_set(config)
    task = tasks.load("train")[0]
    return RolloutRequest.build(task, tasks.context(task), config, "train")


def test_a_request_without_them_is_as_it_was() -> None:
    data = request().dump()
    assert "demonstrations" not in data
    assert RolloutRequest.parse(json.loads(json.dumps(data))).demonstrations == {}


def test_a_request_carries_them_through_the_queue() -> None:
    shown = replace(request(), demonstrations={"write_query": [PAIR]})
    data = json.loads(json.dumps(shown.dump()))
    assert RolloutRequest.parse(data).demonstrations == {"write_query": [PAIR]}


@pytest.mark.parametrize(
    ("turns", "agrees"),
    [
        # A draft that was right and approved.
        ([Turn("right"), Turn("right", True)], (True, True)),
        # A wrong draft, its rejection, the answer.
        ([Turn("wrong"), Turn("wrong", False), Turn("right")], (False, True, True)),
        # Another right draft was rejected, as a check does that rejects everything.
        ([Turn("as good"), Turn("as good", False), Turn("right")], (False, False, True)),
        # It is unknown whether the rejected draft was right.
        ([Turn("unknown"), Turn("unknown", False), Turn("right")], (False, False, True)),
        # A wrong approval, a rejection of the answer itself.
        ([Turn("wrong"), Turn("wrong", True), Turn("right"), Turn("right", False)],
         (False, False, True, False)),
        ([Turn(None)], (False,)),
    ],
)  # fmt: skip
def test_which_calls_agree_with_the_answer(turns: list[Turn], agrees: tuple[bool, ...]) -> None:
    worth = {"right": 1.0, "wrong": 0.0, "as good": 1.0}
    calls = tuple(transition("any", index) for index in range(len(turns)))
    attempt = Attempt("r", "a", "ok", "", "right", calls, (), (), 0.0, 0.0)
    assert agreeing(calls, attempt, turns, worth) == agrees
    assert agreeing(calls[-1:], attempt, turns, worth) == agrees[-1:]
    # A program without drafts.
    assert agreeing(calls, attempt, [], worth) == (True,) * len(calls)

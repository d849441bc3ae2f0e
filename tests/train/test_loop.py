"""What verl is handed of a rollout."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("verl")

from omegaconf import OmegaConf

from harness.config import load_config
from harness.records import Transition
from harness.rollout.session import Scored
from harness.testing.calls import transition
from harness.trainers.verl.loop import HarnessAgentLoop
from harness.trainers.verl.names import ABOUT


def call(role: str, index: int, prompt: tuple[int, ...] = (1,)) -> Transition:
    return transition(
        role,
        index,
        prompt_ids=prompt,
        response_ids=(2, 3),
        logprobs=(-0.1, -0.2),
        prompt_tokens=len(prompt),
        response_tokens=2,
    )


def handed(credit: str, scored: Scored, *, merges: bool = False) -> list[Any]:
    """The outputs of one rollout."""

    async def rollout(*_: Any) -> Scored:
        return scored

    async def connected(_: Any) -> None:
        """There are no servers."""

    loop = object.__new__(HarnessAgentLoop)
    loop._session = SimpleNamespace(rollout=rollout, config=load_config("cpu", None, [f"train.credit={credit}"]))  # type: ignore[assignment]
    loop._connected = connected  # type: ignore[method-assign]
    sampler = {"sampler_kwargs": {"merges": merges}}
    loop.config = OmegaConf.create({"trainer": {"v1": {"trainer_mode": "sync", "sampler": sampler}}})
    row = {"extra_info": {"task_id": "t", "split": "train"}, "session_id": 0, "global_steps": 1}
    return asyncio.run(loop.run({}, **row))


TWO = (call("write", 0), call("rewrite", 1))
KINDS, VALUES = ("write/0", "rewrite/0"), {"write/0": 0.0, "rewrite/0": 1.0}


@pytest.mark.parametrize("credit", ["turn", "role"])
def test_rows_say_what_their_call_is_and_what_all_calls_are_worth(credit: str) -> None:
    found = handed(credit, Scored(1.0, "", 1.0, TWO, KINDS, VALUES, 2, 0.5))
    assert [row.extra_fields[ABOUT]["calls"] for row in found] == [[[kind, 2]] for kind in KINDS]
    assert all(row.extra_fields[ABOUT]["values"] == VALUES for row in found)
    assert {row.reward_score for row in found} == {1.0}  # verl's own figures stay those of rollouts
    (alone,) = handed(credit, Scored(1.0, "", 1.0, (), (), {"write/0": 0.0}, 1, 0.5))  # too long to train
    assert alone.response_mask == [0]
    assert alone.extra_fields[ABOUT] == {"calls": [], "values": {"write/0": 0.0}, "saved": 0, "again": False}


def test_rows_of_a_shared_reward_say_nothing_more() -> None:
    found = handed("shared", Scored(1.0, "", 1.0, TWO, KINDS, dict.fromkeys(KINDS, 1.0), 2, 0.5))
    assert len(found) == 2 and all(ABOUT not in row.extra_fields for row in found)
    assert handed("shared", Scored(None, "lost", None, (), (), {}, 1, 0.5)) == []


@pytest.mark.parametrize("credit", ["shared", "turn"])
def test_calls_of_a_dialogue_are_one_row_that_says_which(credit: str) -> None:
    calls = (call("ask", 0), call("ask", 1, (1, 2, 3, 4)), call("ask", 2, (1, 2)))
    kinds = ("ask/0", "ask/1", "ask/2")
    scored = Scored(1.0, "", 1.0, calls, kinds, dict.fromkeys(kinds, 1.0), 3, 0.5)
    first, second = handed(credit, scored, merges=True)
    assert (first.prompt_ids, first.response_ids) == ([1], [2, 3, 4, 2, 3])
    assert (first.response_mask, first.response_logprobs) == ([1, 1, 0, 1, 1], [-0.1, -0.2, 0, -0.1, -0.2])
    about = first.extra_fields[ABOUT]
    assert (about["calls"], about["saved"], about["again"]) == ([["ask/0", 2], ["ask/1", 3]], 3, False)
    assert (second.prompt_ids, second.extra_fields[ABOUT]["again"]) == ([1, 2], True)
    assert len(handed(credit, scored)) == 3

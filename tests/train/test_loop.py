"""What verl is handed of a rollout."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("verl")

from harness.config import load_config
from harness.records import Transition
from harness.rollout.session import Scored
from harness.trainers.verl.loop import HarnessAgentLoop
from harness.trainers.verl.names import CREDIT


def call(role: str, index: int) -> Transition:
    return Transition(
        rollout_id="r",
        attempt_id="a",
        index=index,
        role=role,
        response_id=str(index),
        model="m",
        messages=(),
        response_text="x",
        finish_reason="stop",
        prompt_ids=(1,),
        response_ids=(2, 3),
        logprobs=(-0.1, -0.2),
        prompt_tokens=1,
        response_tokens=2,
        sampling={},
        overridden={},
        started_s=0.0,
        latency_s=0.0,
        gateway_s=0.0,
    )


def handed(credit: str, scored: Scored) -> list[Any]:
    """The outputs of one rollout."""

    async def rollout(*_: Any) -> Scored:
        return scored

    async def connected(_: Any) -> None:
        """There are no servers."""

    loop = object.__new__(HarnessAgentLoop)
    loop._session = SimpleNamespace(rollout=rollout, config=load_config("cpu", None, [f"train.credit={credit}"]))  # type: ignore[assignment]
    loop._connected = connected  # type: ignore[method-assign]
    loop.config = SimpleNamespace(trainer=SimpleNamespace(v1=SimpleNamespace(trainer_mode="sync")))
    row = {"extra_info": {"task_id": "t", "split": "train"}, "session_id": 0, "global_steps": 1}
    return asyncio.run(loop.run({}, **row))


TWO = (call("write", 0), call("rewrite", 1))
KINDS, VALUES = ("write/0", "rewrite/0"), {"write/0": 0.0, "rewrite/0": 1.0}


@pytest.mark.parametrize("credit", ["turn", "role"])
def test_rows_say_what_their_call_is_and_what_all_calls_are_worth(credit: str) -> None:
    found = handed(credit, Scored(1.0, "", 1.0, TWO, KINDS, VALUES, 2, 0.5))
    assert [row.extra_fields[CREDIT] for row in found] == [{"kind": kind, "values": VALUES} for kind in KINDS]
    assert {row.reward_score for row in found} == {1.0}  # verl's own figures stay those of rollouts
    (alone,) = handed(credit, Scored(1.0, "", 1.0, (), (), {"write/0": 0.0}, 1, 0.5))  # too long to train
    assert alone.response_mask == [0] and alone.extra_fields[CREDIT] == {"kind": "", "values": {"write/0": 0.0}}


def test_rows_of_a_shared_reward_say_nothing_more() -> None:
    found = handed("shared", Scored(1.0, "", 1.0, TWO, KINDS, dict.fromkeys(KINDS, 1.0), 2, 0.5))
    assert len(found) == 2 and all(CREDIT not in row.extra_fields for row in found)
    assert handed("shared", Scored(None, "lost", None, (), (), {}, 1, 0.5)) == []

"""What verl is handed of a rollout."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("verl")

from omegaconf import OmegaConf

from harness.config import load_config
from harness.errors import EnvironmentProblem, RunFailed
from harness.records import Transition
from harness.rollout.scored import Scored
from harness.testing.calls import transition
from harness_verl.loop import HarnessAgentLoop
from harness_verl.names import ABOUT, LOST_FILE, SESSION_FILE
from harness_verl.run import VerlRun
from harness_verl.sampler import _Timed
from harness_verl.shared import SessionFile


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


ROW = {"extra_info": {"task_id": "t", "split": "train"}, "session_id": 0, "global_steps": 1}


def made(session: Any) -> HarnessAgentLoop:
    """A loop over a session; there are no servers."""

    async def connected() -> Any:
        return session

    loop = object.__new__(HarnessAgentLoop)
    loop._connected = connected  # type: ignore[method-assign]
    return loop


def handed(credit: str, scored: Scored, *, merges: bool = False) -> list[Any]:
    """The outputs of one rollout."""

    async def rollout(*_: Any) -> Scored:
        return scored

    loop = made(
        SimpleNamespace(
            rollout=rollout, config=load_config("cpu", None, [f"train.credit={credit}"])
        )
    )
    sampler = {"sampler_kwargs": {"merges": merges}}
    loop.config = OmegaConf.create(
        {"trainer": {"v1": {"trainer_mode": "sync", "sampler": sampler}}}
    )
    return asyncio.run(loop.run({}, **ROW))


TWO = (call("write", 0), call("rewrite", 1))
KINDS, VALUES = ("write/0", "rewrite/0"), {"write/0": 0.0, "rewrite/0": 1.0}


@pytest.mark.parametrize("credit", ["turn", "role"])
def test_rows_say_what_their_call_is_and_what_all_calls_are_worth(credit: str) -> None:
    found = handed(credit, Scored(1.0, "", 1.0, TWO, KINDS, VALUES, 2, 0.5))
    assert [row.extra_fields[ABOUT]["calls"] for row in found] == [[[kind, 2]] for kind in KINDS]
    assert all(row.extra_fields[ABOUT]["values"] == VALUES for row in found)
    assert {row.reward_score for row in found} == {1.0}  # verl's own figures stay those of rollouts
    (alone,) = handed(
        credit, Scored(1.0, "", 1.0, (), (), {"write/0": 0.0}, 1, 0.5)
    )  # too long to train
    assert alone.response_mask == [0]
    assert alone.extra_fields[ABOUT] == {
        "calls": [],
        "values": {"write/0": 0.0},
        "saved": 0,
        "again": False,
    }


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
    assert (first.response_mask, first.response_logprobs) == (
        [1, 1, 0, 1, 1],
        [-0.1, -0.2, 0, -0.1, -0.2],
    )
    about = first.extra_fields[ABOUT]
    assert (about["calls"], about["saved"], about["again"]) == (
        [["ask/0", 2], ["ask/1", 3]],
        3,
        False,
    )
    assert (second.prompt_ids, second.extra_fields[ABOUT]["again"]) == ([1, 2], True)
    assert len(handed(credit, scored)) == 3


def test_a_rollout_that_raises_says_so_beside_the_run(tmp_path: Path) -> None:
    async def rollout(*_: Any) -> Scored:
        raise AssertionError("response 7 was recorded for another one")

    loop = made(SimpleNamespace(rollout=rollout))
    loop._session_file = tmp_path / SESSION_FILE
    loop.config = OmegaConf.create({"trainer": {"v1": {"trainer_mode": "sync"}}})
    with pytest.raises(AssertionError):
        asyncio.run(loop.run({}, **ROW))
    text = (tmp_path / LOST_FILE).read_text()
    assert (
        text
        == "a rollout of task t was lost: AssertionError: response 7 was recorded for another one"
    )
    run = VerlRun.__new__(VerlRun)
    run._live, run._session_file, run._log = (
        SimpleNamespace(poll=lambda: None),
        loop._session_file,
        tmp_path / "log",
    )  # type: ignore[assignment]
    run._scratch, run._begins, run._seen, run._warned = tmp_path, 0, {}, set()
    run._log.touch()
    with pytest.raises(RunFailed, match=text):
        run._look()


def test_verl_may_be_ready_before_the_services(tmp_path: Path) -> None:
    session = SessionFile("run", "store", "gateway", "key", "model", {"seed": 0})

    async def both() -> SessionFile:
        asking = asyncio.ensure_future(SessionFile.awaited(tmp_path / SESSION_FILE))
        await asyncio.sleep(0.2)
        assert not asking.done()
        session.write(tmp_path / SESSION_FILE)
        return await asking

    assert asyncio.run(both()) == session
    assert [(file.name, file.stat().st_mode & 0o777) for file in tmp_path.iterdir()] == [
        (SESSION_FILE, 0o600)
    ]
    with pytest.raises(EnvironmentProblem, match="every node must see the run's folder"):
        asyncio.run(SessionFile.awaited(tmp_path / "none", 0.1))


@pytest.mark.parametrize("lost", [set(), {"7c1"}])
def test_rollouts_that_verl_lost_end_the_run(lost: set[str]) -> None:
    class Buffer:
        def __init__(self, **_: Any) -> None:
            self.failure_keys = {"train": lost}

        def sample(self) -> tuple[Any, dict[str, float]]:
            return SimpleNamespace(partition_id="train"), {}

    class Ours(_Timed, Buffer):
        pass

    buffer = Ours(sampler_kwargs={"batching": "verl"})
    if lost:
        with pytest.raises(RuntimeError, match="verl lost rollouts of 1 tasks"):
            buffer.sample()
    else:
        assert list(buffer.sample()[1]) == ["timing_s/sample"]

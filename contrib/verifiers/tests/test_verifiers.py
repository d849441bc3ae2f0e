"""Tasksets of verifiers keep the contracts.

What fails in the other environment leaves attempts unscored.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from harness import (
    Attempt,
    ConfigError,
    EnvironmentContract,
    EnvironmentFault,
    RewardContract,
    Task,
    TaskSetContract,
    TaskSetError,
)
from harness.config import Config
from harness.plugins import reward_of
from harness.rollout.scoring import Scorer, checked
from harness_verifiers import reward as rewards
from harness_verifiers.environment import VerifiersEnvironment
from harness_verifiers.process import Answer, Source, shared_process
from harness_verifiers.reward import Verifiers
from harness_verifiers.tasks import VerifiersTasks

pytestmark = pytest.mark.timeout(600)


class TestTasks(TaskSetContract):
    task_set = "verifiers"

    @pytest.fixture(scope="class")
    @classmethod
    def options(cls, python: Path) -> Mapping[str, Any]:
        return {"taskset": "glossary", "python": str(python)}


class TestEnvironment(EnvironmentContract):
    environment = "verifiers"
    calls = (("scratchpad_roundtrip", {"word": "alpha"}),)

    @pytest.fixture(scope="class")
    @classmethod
    def tasks(cls, python: Path) -> Sequence[Task]:
        return VerifiersTasks("scratchpad", python=python, limit=2).load("all")


async def test_attempts_at_once_have_states_of_their_own_in_a_shared_toolset(python: Path) -> None:
    tasks = VerifiersTasks("scratchpad", python=python, limit=2).load("all")
    made = VerifiersEnvironment()
    payloads = [made.payload(task, {"timeout_s": 20.0, "max_chars": 100}) for task in tasks]
    sessions = [await made.open(one, f"apart/{number}") for number, one in enumerate(payloads)]
    words = ["one", "two"]
    asked = (
        one.call("scratchpad_roundtrip", {"word": word})
        for one, word in zip(sessions, words, strict=True)
    )
    assert [reply.text for reply in await asyncio.gather(*asked)] == words
    assert [(await one.close() or {})["state"] for one in sessions] == [
        {"artifacts": {}, "slot": one} for one in words
    ]


class TestReward(RewardContract):
    reward = "verifiers"

    @pytest.fixture(scope="class")
    @classmethod
    def tasks(cls, python: Path) -> Sequence[Task]:
        return VerifiersTasks("glossary", python=python).load("all")


def _attempt(answer: str) -> Attempt:
    return Attempt("rollout", "1", "ok", "", answer, (), (), (), 0.0, 0.0)


@pytest.mark.slow
async def test_what_still_loads_is_waited_for_before_an_attempt_and_not_in_it(
    python: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The interpreter of the subprocess stops itself before it loads anything, so that it is
    # not loaded after 0.05 s, however slow this process is.
    stops = tmp_path / "python"
    stops.write_text(f'#!/bin/sh\nkill -STOP $$\nexec {python} "$@"\n', encoding="utf-8")
    stops.chmod(0o755)
    made = VerifiersEnvironment()
    (task,) = VerifiersTasks("scratchpad", python=python, limit=1).load("all")
    payload = {
        **made.payload(task, {"timeout_s": 20.0, "max_chars": 100}),
        "python": str(stops),
    }
    with monkeypatch.context() as patched:
        patched.setattr("harness_verifiers.environment.START_S", 0.05)
        with pytest.raises(
            EnvironmentFault, match=r"is not loaded after 0\.05 s, and continues to load"
        ):
            await made.open(payload, "early/0")
    side = shared_process(Source.of(payload))
    await asyncio.to_thread(wait_until_stopped, side.pid)
    os.kill(side.pid, signal.SIGCONT)
    await made.ready(payload)
    await (await made.open(payload, "ready/0")).close()
    with pytest.raises(EnvironmentFault, match="does not start: .*/nowhere"):
        await made.ready({**payload, "python": "/nowhere"})


def wait_until_stopped(pid: int) -> None:
    """Wait until a process is in state T (stopped) of proc(5)."""
    status = Path(f"/proc/{pid}/stat")
    while status.read_text(encoding="utf-8").rpartition(")")[2].split()[0] != "T":
        time.sleep(0.01)


@pytest.mark.slow
async def test_a_side_process_that_dies_or_hangs_scores_nothing_and_is_made_anew(
    python: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = VerifiersTasks("glossary", python=python).load("all")[0]
    source = Source.of(task.data["verifiers"])
    reward, right = Verifiers(), _attempt(task.gold)
    assert (await reward.score(task, right)).value == 1.0
    killed = shared_process(source).pid
    os.kill(killed, signal.SIGKILL)
    again = await reward.score(task, right)
    assert shared_process(source).pid != killed
    assert (again.value, again.parts) == (1.0, {"looked_up": 1.0})
    monkeypatch.setattr(rewards, "SCORE_S", 1.0)
    monkeypatch.setattr(rewards, "TRIES", 1)
    os.kill(shared_process(source).pid, signal.SIGSTOP)
    hung = await reward.score(task, right)
    assert hung.value is None and "did not answer within 1 s" in hung.reason
    other = Task(**{**{name: getattr(task, name) for name in Task.__slots__}, "data": _other(task)})
    monkeypatch.setattr(rewards, "SCORE_S", 60.0)
    refused = await reward.score(other, right)
    assert refused.value is None and "has changed since the tasks were loaded" in refused.reason


def _other(task: Task) -> Mapping[str, Any]:
    return {"verifiers": {**task.data["verifiers"], "hash": "of another"}}


def test_an_environment_that_is_not_there_says_how_to_make_it(tmp_path: Path) -> None:
    with pytest.raises(TaskSetError, match="uv venv .*uv pip install .*verifiers==") as found:
        VerifiersTasks("glossary", python=tmp_path / "bin" / "python").load("all")
    assert "\n" not in str(found.value)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"taskset": "no_such_set"}, "ModuleNotFoundError.*Install it: uv pip install"),
        ({"taskset": ""}, "task.options.taskset=NAME"),
        ({"taskset": "glossary", "config": {"no_such": 1}}, "no_such"),
        ({"taskset": "glossary", "val_size": 9}, "all 5 tasks are val"),
        ({"taskset": "judged"}, "a model judges it"),
    ],
)
def test_what_cannot_be_run_is_one_line(
    python: Path, options: dict[str, Any], message: str
) -> None:
    if options["taskset"] == "judged":
        judge = {"id": "reference", "model": "none"}
        options = {"taskset": "glossary", "config": {"task": {"judges": [judge]}}}
    with pytest.raises(TaskSetError, match=message) as found:
        VerifiersTasks(**options, python=python).load("train")
    assert "\n" not in str(found.value)


@pytest.mark.slow
def test_splits_share_no_task_and_the_system_prompt_is_told(python: Path, texts: Path) -> None:
    tasks = VerifiersTasks("reverse_text", {"dataset_name": str(texts)}, python=python, val_size=2)
    train, val = tasks.load("train"), tasks.load("val")
    assert (len(train), len(val)) == (4, 2) and not {task.id for task in train} & {
        task.id for task in val
    }
    assert train[0].question == "a small gray cat" and train[0].gold == "tac yarg llams a"
    assert "Reverse the text" in tasks.context(train[0])["instructions"]
    assert not asyncio.run(_opens(train[0])), "it has no tools"


async def _opens(task: Task) -> Sequence[object]:
    environment = VerifiersEnvironment()
    payload = environment.payload(task, {"timeout_s": 1.0, "max_chars": 10})
    session = await environment.open(payload, "attempt")
    assert await session.close() is None
    return environment.tools_for(payload)


def test_a_sum_beyond_one_is_stated_and_never_clipped() -> None:
    expected: Answer = {
        "id": 1,
        "value": 1.5,
        "rewards": {"right": (1.0, 1.0), "form": (1.0, 0.5)},
        "stopped": "agent_completed",
    }
    verdict = rewards.verdict_of(expected)
    wide = Config.model_validate({"reward": {"name": "verifiers", "range": [-0.5, 1.5]}})
    assert checked(verdict, reward_of(wide)).value == 1.5
    ended = Attempt("ro-1", "at-1", "agent_error", "it raised", None, (), (), (), 0.0, 1.0)
    assert (
        asyncio.run(Scorer(wide).judge(Task("t", "verifiers", "all", "q", ""), ended))[1].value
        == -0.5
    )  # below any answer
    unstated = Config.model_validate({"reward": {"name": "verifiers"}})
    with pytest.raises(
        ValueError, match=r"1\.5, outside of its range 0 to 1\. Set .* reward\.range=\[LOW, HIGH\]"
    ):
        checked(verdict, reward_of(unstated))
    with pytest.raises(ConfigError, match=r"execution_accuracy gives 0 to 1 with all tasks"):
        reward_of(Config.model_validate({"reward": {"range": [0, 2]}}))
    with pytest.raises(ValidationError, match="does not go from a number to a greater one"):
        Config.model_validate({"reward": {"range": [2, 0]}})

"""reasoning_gym's puzzles are tasks like others: the same in every process, graded by their own rules."""

from __future__ import annotations

import asyncio
import gc
import re
from collections.abc import Sequence
from dataclasses import replace

import pytest

from harness import (
    Attempt,
    EnvironmentContract,
    RewardContract,
    Task,
    TaskSetContract,
    TaskSetError,
)
from harness_reasoning_gym import reward as rewards
from harness_reasoning_gym.reward import ReasoningGym
from harness_reasoning_gym.tasks import ReasoningGymTasks


def _tasks() -> Sequence[Task]:
    return ReasoningGymTasks("chain_sum", val_size=20).load("val")


class TestEnvironment(EnvironmentContract):
    environment = "no_tools"

    @pytest.fixture(scope="class")
    @classmethod
    def tasks(cls) -> Sequence[Task]:
        return _tasks()


class TestTasks(TaskSetContract):
    task_set = "reasoning_gym"


class TestReward(RewardContract):
    reward = "reasoning_gym"

    @pytest.fixture(scope="class")
    @classmethod
    def tasks(cls) -> Sequence[Task]:
        return [replace(task, gold=f"<answer>{task.gold}</answer>") for task in _tasks()[:3]]

    @pytest.fixture(scope="class")
    @classmethod
    def unscorable(cls) -> Sequence[Task]:
        return []


def _attempt(answer: str) -> Attempt:
    return Attempt("rollout", "1", "ok", "", answer, (), (), (), 0.0, 0.0)


@pytest.mark.slow
@pytest.mark.parametrize(
    "dataset", ["basic_arithmetic", "countdown", "family_relationships", "sudoku", "word_sorting"]
)
def test_data_sets_of_every_sort_grade_what_they_say_is_right(dataset: str) -> None:
    async def grades() -> list[float | None]:
        reward = ReasoningGym()
        tasks = ReasoningGymTasks(dataset, train_size=2, val_size=2).load("train")
        answers = [
            (task, answer)
            for task in tasks
            for answer in (f"So <answer>{task.gold}</answer>.", task.gold, "?")
        ]
        return [(await reward.score(task, _attempt(answer))).value for task, answer in answers]

    right, untagged, other = asyncio.run(grades())[:3]
    assert (
        right == 1.0 and untagged is not None and other is not None and max(untagged, other) <= 0.01
    )


def test_difficulty_and_parameters_change_the_questions_and_the_splits_share_none() -> None:
    plain, harder = ReasoningGymTasks("chain_sum"), ReasoningGymTasks("chain_sum", level=3)
    longer = ReasoningGymTasks("chain_sum", parameters={"min_terms": 9, "max_terms": 9})
    asked = [[task.question for task in tasks.load("val")] for tasks in (plain, harder, longer)]
    assert asked[0] != asked[1] != asked[2] and all(
        len(re.findall(" [+-] ", one)) == 8 for one in asked[2]
    )
    small = ReasoningGymTasks(
        "chain_sum", parameters={"max_terms": 2, "max_digits": 1}, train_size=400
    )
    train, val = ({task.question for task in small.load(split)} for split in ("train", "val"))
    assert train and not train & val
    assert len(train) == len(small.load("train")) < 400


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dataset": "chain_sums"}, "Did you mean 'chain_sum'"),
        ({"parameters": {"no_such": 1}}, "no_such"),
        ({"parameters": {"min_terms": 5, "max_terms": 2}}, "max_terms"),
        ({"dataset": "composite"}, "Must specify at least one dataset"),
        ({"dataset": "composite", "level": 2}, "no levels"),
        ({"level": 99}, "the highest of reasoning_gym's 'chain_sum' is"),
        ({"val_size": 0}, "val_size=0"),
        ({"seed": -1}, "seed=-1"),
    ],
)
def test_what_cannot_be_made_is_one_line(options: dict[str, object], message: str) -> None:
    with pytest.raises(TaskSetError, match=message) as found:
        ReasoningGymTasks(**options).load("val")  # type: ignore[arg-type]
    assert "\n" not in str(found.value)


@pytest.mark.slow
async def test_a_grader_that_hangs_or_dies_leaves_the_answer_unscored_and_is_made_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reward, task = ReasoningGym(), _tasks()[0]
    right = _attempt(f"<answer>{task.gold}</answer>")
    assert (await reward.score(task, right)).value == 1.0
    process = reward._process
    assert process is not None
    process.kill()
    process.wait()
    assert (await reward.score(task, right)).value == 1.0
    monkeypatch.setattr(rewards, "LIMIT_S", 1.0)
    assert reward._process is not None and reward._process.pid != process.pid
    reward._process.send_signal(19)  # SIGSTOP
    hung = await reward.score(task, right)
    assert hung.value is None and "no grade within 1 s" in hung.reason
    monkeypatch.setattr(rewards, "LIMIT_S", 60.0)
    assert (await reward.score(task, right)).value == 1.0
    broken = replace(task, data={**task.data, "number": "x"})
    assert (await reward.score(broken, right)).value is None
    process = reward._process
    del reward
    async with asyncio.timeout(30):  # the thread that asked it last may hold it for a moment longer
        while process.returncode is None:
            gc.collect()
            await asyncio.sleep(0.01)

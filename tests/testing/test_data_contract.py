"""The contract suites of task sets and rewards catch what they are there to catch."""

from __future__ import annotations

import asyncio
import itertools
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from harness.contracts.hookspecs import RewardSpec, TaskSetSpec, hookimpl
from harness.plugins import Registry, make
from harness.records import Attempt, Task, Verdict
from harness.testing.data_contract import RewardContract, TaskSetContract, asked
from harness_sql.rewards.execution_accuracy import ExecutionAccuracy
from harness_sql.self_correcting.scenarios import build_database
from harness_sql.sqlite.environment import DATABASE, database_of
from harness_sql.tasks.pocket import PocketTasks
from harness_sql.testing import GOLDS


class Tasks(PocketTasks):
    """Pocket's validation under another name."""

    name = "broken"
    made = itertools.count()

    def __init__(self) -> None:
        super().__init__()
        self.number = next(self.made)

    def load(self, split: str) -> Sequence[Task]:
        return super().load(split)[:40]


class TaskSetsOwn(Tasks):
    def load(self, split: str) -> Sequence[Task]:
        return [replace(task, task_set="pocket") for task in super().load(split)]


class Empty(Tasks):
    def load(self, split: str) -> Sequence[Task]:
        super().load(split)
        return []


class AnySplit(Tasks):
    def load(self, split: str) -> Sequence[Task]:
        return super().load("val")


class Doubled(Tasks):
    def load(self, split: str) -> Sequence[Task]:
        return [task for task in super().load(split) for _ in range(2)]


class Renumbered(Tasks):
    def load(self, split: str) -> Sequence[Task]:
        return [replace(task, id=f"{self.number}/{task.id}") for task in super().load(split)]


class Turning(Tasks):
    def load(self, split: str) -> Sequence[Task]:
        tasks = super().load(split)
        turn = next(self.made) % 7
        return [*tasks[turn:], *tasks[:turn]]


class Telling(Tasks):
    def load(self, split: str) -> Sequence[Task]:
        return [
            replace(task, question=f"{task.question} ({task.gold})") for task in super().load(split)
        ]


class TellingSchema(Tasks):
    def schema(self, task: Task) -> str:
        return f"{super().schema(task)}\n-- {task.gold}"


class Missing(Tasks):
    def load(self, split: str) -> Sequence[Task]:
        return [
            replace(task, data={DATABASE: database_of(task) + ".gone"})
            for task in super().load(split)
        ]


class NoDatabase(Tasks):
    def load(self, split: str) -> Sequence[Task]:
        return [replace(task, data={DATABASE: __file__}) for task in super().load(split)]


class Bare(Tasks):
    def schema(self, task: Task) -> str:
        return " "


class Changing(Tasks):
    def schema(self, task: Task) -> str:
        return f"{super().schema(task)}\n-- {self.number}"


class Paths(Tasks):
    def describe(self) -> Mapping[str, Any]:
        return {**super().describe(), "root": Path(self.root)}


class Dated(Tasks):
    def describe(self) -> Mapping[str, Any]:
        return {**super().describe(), "made": self.number}


class Lenient(Tasks):
    def __init__(self, **options: Any) -> None:
        super().__init__()


class Judge(ExecutionAccuracy):
    """Execution accuracy under another name."""

    version = "broken/1"

    async def score(self, task: Task, attempt: Attempt) -> Verdict:
        return self.changed(await super().score(task, attempt), attempt)

    def changed(self, verdict: Verdict, attempt: Attempt) -> Any:
        return verdict


class Stingy(Judge):
    def changed(self, verdict: Verdict, attempt: Attempt) -> Verdict:
        return replace(verdict, value=verdict.value and 0.9)


class Generous(Judge):
    def changed(self, verdict: Verdict, attempt: Attempt) -> Verdict:
        return replace(verdict, value=1.0 if attempt.answer == "" else verdict.value)


class Raising(Judge):
    def changed(self, verdict: Verdict, attempt: Attempt) -> Verdict:
        if not (attempt.answer or "").strip():
            raise ValueError("no answer")
        return verdict


class TooMuch(Judge):
    def changed(self, verdict: Verdict, attempt: Attempt) -> Verdict:
        return replace(verdict, value=verdict.value and 1.5)


class NotANumber(Judge):
    def changed(self, verdict: Verdict, attempt: Attempt) -> Verdict:
        return replace(verdict, value=float("nan"))


class Unwrapped(Judge):
    def changed(self, verdict: Verdict, attempt: Attempt) -> Any:
        return verdict.value


class Silent(Judge):
    def changed(self, verdict: Verdict, attempt: Attempt) -> Verdict:
        return replace(verdict, reason="" if verdict.value is None else verdict.reason)


class Moody(Judge):
    mood = itertools.count()

    def changed(self, verdict: Verdict, attempt: Attempt) -> Verdict:
        return replace(verdict, parts={"mood": next(self.mood)})


class Confused(Judge):
    """Keeps what it is about in itself, where others overwrite it."""

    async def score(self, task: Task, attempt: Attempt) -> Verdict:
        self.task = task
        await asyncio.sleep(0)
        return await super().score(self.task, attempt)


class Nameless(Judge):
    version = ""


class Plain(Judge):
    def score(self, task: Task, attempt: Attempt) -> Verdict:  # type: ignore[override]
        return Verdict(1.0, "")


class Deaf(Judge):
    def __init__(self, **options: Any) -> None:
        super().__init__()


@pytest.fixture
def offer(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Offers a class through an entry point, as the only plugin beside harness's own, and makes its specs."""

    def install(hook: str, of: type[Any], part: type) -> Any:
        where = {"environment": "sql"} if of is TaskSetSpec else {}
        spec = of("broken", f"{__name__}:{part.__name__}", "", **where)
        module = ModuleType("broken_plugin")
        vars(module).update({"HARNESS_API": 1, hook: hookimpl(lambda: [spec])})
        monkeypatch.setitem(sys.modules, "broken_plugin", module)
        found = Registry(
            [
                *entry_points(group="harness", name="sql"),
                EntryPoint("broken", "broken_plugin", "harness"),
            ]
        )
        assert not (problems := [one.problem for one in found.states if one.problem]), problems
        monkeypatch.setattr("harness.plugins.registry", lambda: found)
        return spec

    return install


def _check_task_set(spec: TaskSetSpec, test: str) -> None:
    """One test of the suite, its fixtures made by hand."""
    made = make(spec, {}, "task.options")
    given = {
        "spec": spec,
        "options": {},
        "made": made,
        "loaded": {split: made.load(split) for split in spec.splits},
    }
    _call(TaskSetContract, test, given)


def _check_reward(spec: RewardSpec, test: str, tasks: Sequence[Task], tmp_path: Path) -> None:
    broken = [
        replace(tasks[0], gold="SELECT nope"),
        replace(tasks[0], data={DATABASE: str(tmp_path / "no.sqlite")}),
    ]
    given = {"spec": spec, "options": {}, "tasks": tasks, "unscorable": broken}
    with nullcontext() if test == "test_the_class_states_the_version" else asked(spec, {}) as made:
        _call(RewardContract, test, {**given, "made": made})


def _call(suite: type, test: str, given: Mapping[str, Any]) -> None:
    function = getattr(suite, test)
    names = function.__code__.co_varnames[1 : function.__code__.co_argcount]
    function(suite(), **{name: given[name] for name in names})


def _tests(suite: type) -> list[str]:
    return [name for name in vars(suite) if name.startswith("test_")]


@pytest.fixture
def singers(tmp_path: Path) -> list[Task]:
    database = str(build_database(tmp_path))
    return [
        Task(f"t{n}", "contract", "val", "?", gold, "parity", data={DATABASE: database})
        for n, gold in enumerate(GOLDS)
    ]


TASK_SETS = [
    (
        TaskSetsOwn,
        "test_every_declared_split_has_tasks",
        r"of broken/train says that it is of \('pocket', 'train'\)",
    ),
    (Empty, "test_every_declared_split_has_tasks", "split 'train' is empty"),
    (AnySplit, "test_an_undeclared_split_is_refused", "DID NOT RAISE"),
    (Doubled, "test_ids_are_unique_and_a_second_load_is_the_same", "split 'train' has an id twice"),
    (
        Renumbered,
        "test_ids_are_unique_and_a_second_load_is_the_same",
        "'train' is another in another process",
    ),
    (
        Turning,
        "test_ids_are_unique_and_a_second_load_is_the_same",
        "'train' is another when loaded again",
    ),
    (Telling, "test_gold_is_not_in_the_problem", "is in its question"),
    (TellingSchema, "test_gold_is_not_in_the_problem", "is in its schema"),
    (Missing, "test_its_environment_can_act_on_every_task", "no database at .*gone"),
    (NoDatabase, "test_its_environment_can_act_on_every_task", "is no SQLite database"),
    (Bare, "test_context_is_text_and_the_same_again", "has no schema text"),
    (Changing, "test_context_is_text_and_the_same_again", "is another in another process"),
    (Paths, "test_describes_itself_as_json_and_the_same_again", "not JSON serializable"),
    (Dated, "test_describes_itself_as_json_and_the_same_again", "describes other made"),
    (Lenient, "test_an_unknown_option_is_refused", "DID NOT RAISE"),
]
REWARDS = [
    (Stingy, "test_gold_scores_the_most", "gold must be given the spec's high, 1: .* got 0.9"),
    (
        TooMuch,
        "test_gold_scores_the_most",
        r"reward broken of \? returned value 1.5, outside of its range 0 to 1",
    ),
    (
        NotANumber,
        "test_gold_scores_the_most",
        r"reward broken of \? returned value nan, which is not finite",
    ),
    (
        Unwrapped,
        "test_gold_scores_the_most",
        r"reward broken of \? returned float 1.0, not a Verdict",
    ),
    (Generous, "test_a_broken_answer_does_not_raise_nor_score_the_most", "value=1.0"),
    (
        Raising,
        "test_a_broken_answer_does_not_raise_nor_score_the_most",
        r"reward broken of \? raised ValueError: no answer",
    ),
    (
        Silent,
        "test_a_gold_or_data_that_fail_do_not_raise_nor_score_the_most",
        "unscored without a reason",
    ),
    (
        Moody,
        "test_the_same_attempt_scores_the_same_again",
        "SELECT .* scores .*'mood': 0.0.* and then .*'mood': 1.0",
    ),
    (
        Confused,
        "test_attempts_at_once_score_what_each_scores_alone",
        "SELECT .* alone and .* among others",
    ),
    (
        Nameless,
        "test_the_class_states_the_version",
        "must state its version as 'broken/1', but has ''",
    ),
    (Plain, "test_the_class_states_the_version", "must have `async def score"),
    (Deaf, "test_an_unknown_option_is_refused", "DID NOT RAISE"),
]


@pytest.mark.parametrize(("part", "test", "why"), TASK_SETS)
def test_a_broken_task_set_is_caught(
    part: type[Tasks], test: str, why: str, offer: Callable[..., Any]
) -> None:
    spec = offer("harness_tasks", TaskSetSpec, part)
    with pytest.raises((Exception, pytest.fail.Exception), match=why):
        _check_task_set(spec, test)


@pytest.mark.parametrize(("part", "test", "why"), REWARDS)
def test_a_broken_reward_is_caught(
    part: type[Judge],
    test: str,
    why: str,
    offer: Callable[..., Any],
    singers: list[Task],
    tmp_path: Path,
) -> None:
    spec = offer("harness_rewards", RewardSpec, part)
    with pytest.raises((Exception, pytest.fail.Exception), match=why):
        _check_reward(spec, test, singers, tmp_path)


def test_every_test_of_the_suites_has_caught_something_and_passes_what_is_whole(
    offer: Callable[..., Any], singers: list[Task], tmp_path: Path
) -> None:
    assert {test for _, test, _ in TASK_SETS} == set(_tests(TaskSetContract))
    assert {test for _, test, _ in REWARDS} == set(_tests(RewardContract))
    spec = offer("harness_tasks", TaskSetSpec, Tasks)
    for test in _tests(TaskSetContract):
        _check_task_set(spec, test)
    spec = offer("harness_rewards", RewardSpec, Judge)
    for test in _tests(RewardContract):
        _check_reward(spec, test, singers, tmp_path)


def test_the_contracts_cannot_be_overridden() -> None:
    for suite in (TaskSetContract, RewardContract):
        with pytest.raises(TypeError, match="overrides test_an_unknown_option_is_refused"):
            type("Mine", (suite,), {"test_an_unknown_option_is_refused": lambda self: None})
        inherited = type("Mine", (suite,), {"test_of_my_own": lambda self: None})
        with pytest.raises(TypeError, match="overrides test_of_my_own"):
            type("Others", (inherited,), {"test_of_my_own": lambda self: None})

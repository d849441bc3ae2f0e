"""The contracts of every task set and of every reward, as test classes to inherit.

    from harness.testing.data_contract import RewardContract, TaskSetContract

    class TestTasks(TaskSetContract):
        task_set = "my_tasks"

    class TestReward(RewardContract):
        reward = "my_reward"

        @pytest.fixture(scope="class")
        @classmethod
        def tasks(cls): ...

The tests cannot be overridden, the fixtures can: `options` for a part with required options,
`tasks` and `unscorable` for a reward. Their scope is `class` or wider, since a part is built once
for all tests. Override `left` for a reward that judges the final state of an attempt. Needs pytest
and nothing else.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import pytest

from harness.config import Config
from harness.contracts.environments import Environment
from harness.contracts.hookspecs import RewardSpec, TaskSetSpec
from harness.contracts.tasks import TaskSet
from harness.errors import ConfigError, TaskSetError
from harness.parity.recorder import LIMITS
from harness.plugins import (
    environment,
    environment_of,
    make,
    reward_spec,
    reward_version,
    task_set_spec,
)
from harness.records import JSON, Attempt, Task, Verdict
from harness.rollout.scoring import Scorer

UNKNOWN = {"no_such_option": 1}
BROKEN_ANSWERS = (
    None, "", " \n", ";", "-- nothing", "\0", "\ud800", "SELECT", "SELEC name FROM singer", "SELECT nothing FROM no",
    "SELECT 1 WHERE 0", "DROP TABLE singer", "DELETE FROM concert", "I do not know.", "(" * 5000, "SELECT 1" * 5000,
)  # fmt: skip
"""Invalid answers."""
Left = Callable[[str | None], Mapping[str, JSON] | None]
SHORT_GOLD = 12
"""A shorter gold, such as a number, may legitimately occur in its question."""


class Asked:
    """A reward, built and called as in a run, on one event loop. Its faults are `RewardError`."""

    def __init__(self, scorer: Scorer, runner: asyncio.Runner, left: Left) -> None:
        self._scorer, self._runner, self._left = scorer, runner, left

    def score(self, task: Task, answer: str | None) -> Verdict:
        """Return the verdict on one answer; one without a value has a reason."""
        attempt = self._attempt("contract", answer)
        verdict = self._runner.run(self._scorer.score(task, attempt))
        unscored = (answer, "unscored without a reason")
        assert verdict.value is not None or verdict.reason.strip(), unscored
        return verdict

    def score_at_once(self, cases: Sequence[tuple[Task, str]]) -> list[Verdict]:
        """Return the verdicts on several answers, requested concurrently."""

        async def all_of_them() -> list[Verdict]:
            scores = []
            for number, (task, answer) in enumerate(cases):
                scores.append(self._scorer.score(task, self._attempt(f"{number}", answer)))
            return await asyncio.gather(*scores)

        return self._runner.run(all_of_them())

    def _attempt(self, rollout_id: str, answer: str | None) -> Attempt:
        return Attempt(rollout_id, "1", "ok", "", answer, (), (), (), 0.0, 0.0, self._left(answer))


class Contract:
    """A suite with the same tests for every part."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        changed = []
        for name in vars(cls):
            # Tests of a name of its own are welcome in a subclass.
            if name.startswith("test_") and hasattr(super(cls, cls), name):
                changed.append(name)
        if changed:
            raise TypeError(
                f"{cls.__name__} overrides {', '.join(changed)}; "
                "the contract is the same for every part"
            )


class TaskSetContract(Contract):
    """Requirements of trainer, evaluation and comparison. Set `task_set` to the task set's name."""

    task_set: ClassVar[str] = ""

    @pytest.fixture(scope="class")
    @classmethod
    def options(cls) -> Mapping[str, Any]:
        """Return the options of the task set."""
        return {}

    @pytest.fixture(scope="class")
    @classmethod
    def spec(cls) -> TaskSetSpec:
        """Return the task set's spec."""
        assert cls.task_set, "set `task_set` to the task set's name"
        return task_set_spec(cls.task_set)

    @pytest.fixture(scope="class")
    @classmethod
    def made(cls, spec: TaskSetSpec, options: Mapping[str, Any]) -> TaskSet:
        """Return the task set, built as in a run."""
        return _task_set(spec, options)

    @pytest.fixture(scope="class")
    @classmethod
    def loaded(cls, spec: TaskSetSpec, made: TaskSet) -> Mapping[str, Sequence[Task]]:
        """Return the tasks of every declared split."""
        return {split: made.load(split) for split in spec.splits}

    def test_every_declared_split_has_tasks(
        self, spec: TaskSetSpec, loaded: Mapping[str, Sequence[Task]]
    ) -> None:
        for split, tasks in loaded.items():
            assert len(tasks), f"split {split!r} is empty"
            for task in tasks:
                assert isinstance(task, Task), f"split {split!r} has {task!r}, no Task"
                stated = (task.task_set, task.split)
                assert stated == (spec.name, split), (
                    f"{task.id} of {spec.name}/{split} says that it is of {stated}"
                )
                for field in ("id", "question", "gold"):
                    assert getattr(task, field).strip(), f"{field} of {task.id!r} is empty"

    def test_an_undeclared_split_is_refused(self, made: TaskSet) -> None:
        with pytest.raises(TaskSetError) as refused:
            made.load("no_such_split")
        assert "no_such_split" in str(refused.value) and "\n" not in str(refused.value)

    def test_ids_are_unique_and_a_second_load_is_the_same(
        self,
        spec: TaskSetSpec,
        options: Mapping[str, Any],
        made: TaskSet,
        loaded: Mapping[str, Sequence[Task]],
    ) -> None:
        other = _task_set(spec, options)  # as in another process of the same run
        for split, tasks in loaded.items():
            ids = [task.id for task in tasks]
            assert len(set(ids)) == len(ids), f"split {split!r} has an id twice"
            assert list(made.load(split)) == list(tasks), (
                f"split {split!r} is another when loaded again"
            )
            assert list(other.load(split)) == list(tasks), (
                f"split {split!r} is another in another process"
            )

    def test_gold_is_not_in_the_problem(
        self, made: TaskSet, loaded: Mapping[str, Sequence[Task]]
    ) -> None:
        for task in _different(loaded):
            gold = task.gold.strip()
            if len(gold) < SHORT_GOLD:
                continue
            # A runner and its agent get all of these texts.
            for field, text in {"question": task.question, **made.context(task)}.items():
                assert gold not in text, f"the gold of {task.id} is in its {field}"

    def test_its_environment_can_act_on_every_task(
        self, spec: TaskSetSpec, loaded: Mapping[str, Sequence[Task]]
    ) -> None:
        check_payloads(environment(environment_of(spec.name)), _different(loaded))

    def test_context_is_text_and_the_same_again(
        self,
        spec: TaskSetSpec,
        options: Mapping[str, Any],
        made: TaskSet,
        loaded: Mapping[str, Sequence[Task]],
    ) -> None:
        other = _task_set(spec, options)
        # Tasks of a cluster, such as a database, share a context that may take long to make.
        clusters = {task.cluster or task.id: task for task in _different(loaded)}
        for task in clusters.values():
            context = dict(made.context(task))
            empty = []
            for name, text in context.items():
                if not isinstance(text, str) or not text.strip():
                    empty.append(name)
            assert not empty, f"{task.id} has no {', '.join(empty)} text"
            assert dict(other.context(task)) == context, (
                f"the context of {task.id} is another in another process"
            )

    def test_describes_itself_as_json_and_the_same_again(
        self, spec: TaskSetSpec, options: Mapping[str, Any], made: TaskSet
    ) -> None:
        described = dict(made.describe())
        assert described, "describes nothing"
        assert json.loads(json.dumps(described, allow_nan=False)) == described, (
            "is another when read back from JSON"
        )
        # The description is part of a run's identity: runs with different ones are not compared.
        other = dict(_task_set(spec, options).describe())
        changed = [key for key in {*described, *other} if described.get(key) != other.get(key)]
        assert not changed, f"describes other {', '.join(sorted(changed))} in another process"

    def test_an_unknown_option_is_refused(
        self, spec: TaskSetSpec, options: Mapping[str, Any]
    ) -> None:
        with pytest.raises(ConfigError, match="no_such_option"):
            _task_set(spec, {**options, **UNKNOWN})


class RewardContract(Contract):
    """Requirements of training and evaluation. Set `reward` to the reward's name.

    Every verdict is requested as in a run: one that is late, not finite, out of the declared range
    or no verdict at all is a `RewardError` that names the reward and its distribution, and fails
    the test.
    """

    reward: ClassVar[str] = ""

    @pytest.fixture(scope="class")
    @classmethod
    def options(cls) -> Mapping[str, Any]:
        """Return the options of the reward."""
        return {}

    @pytest.fixture(scope="class")
    @classmethod
    def tasks(cls) -> Sequence[Task]:
        """Return tasks with gold; none of `BROKEN_ANSWERS` may be right."""
        raise NotImplementedError("give the fixture `tasks`: some tasks that the reward judges")

    @pytest.fixture(scope="class")
    @classmethod
    def unscorable(cls) -> Sequence[Task]:
        """Return tasks with broken gold or data; none if the reward has no such."""
        return []

    @classmethod
    def left(cls, answer: str | None) -> Mapping[str, JSON] | None:
        """Return the final state of an attempt with this answer; the gold's state is right."""
        return None

    @pytest.fixture(scope="class")
    @classmethod
    def spec(cls) -> RewardSpec:
        """Return the reward's spec."""
        assert cls.reward, "set `reward` to the reward's name"
        return reward_spec(cls.reward)

    @pytest.fixture(scope="class")
    @classmethod
    def made(cls, spec: RewardSpec, options: Mapping[str, Any]) -> Iterator[Asked]:
        """Return the reward, built as in a run."""
        with asked(spec, options, cls.left) as reward:
            yield reward

    def test_gold_scores_the_most(
        self, spec: RewardSpec, made: Asked, tasks: Sequence[Task]
    ) -> None:
        for task in tasks:
            verdict = made.score(task, task.gold)
            given = f"{task.gold!r} got {verdict.value} ({verdict.reason})"
            assert verdict.value == spec.high, (
                f"gold must be given the spec's high, {spec.high:g}: {given}"
            )

    def test_a_broken_answer_does_not_raise_nor_score_the_most(
        self, spec: RewardSpec, made: Asked, tasks: Sequence[Task]
    ) -> None:
        for task in tasks:
            before = _files(task)
            for answer in BROKEN_ANSWERS:
                verdict = made.score(task, answer)
                assert verdict.value is None or verdict.value < spec.high, (answer, verdict)
            assert _files(task) == before, f"changed files of {task.id}"

    def test_a_gold_or_data_that_fail_do_not_raise_nor_score_the_most(
        self, spec: RewardSpec, made: Asked, unscorable: Sequence[Task]
    ) -> None:
        for task in unscorable:
            verdict = made.score(task, "SELECT 1")
            assert verdict.value is None or verdict.value < spec.high, verdict

    def test_the_same_attempt_scores_the_same_again(
        self, spec: RewardSpec, options: Mapping[str, Any], made: Asked, tasks: Sequence[Task]
    ) -> None:
        with asked(spec, options, self.left) as other:  # as in another process of the same run
            for task, answer in _cases(tasks):
                first = _repeatable(made.score(task, answer))
                again = _repeatable(made.score(task, answer))
                elsewhere = _repeatable(other.score(task, answer))
                assert first == again, f"{answer!r} scores {first}, and then {again}"
                assert first == elsewhere, (
                    f"{answer!r} scores {first}, and {elsewhere} in another process"
                )

    def test_attempts_at_once_score_what_each_scores_alone(
        self, made: Asked, tasks: Sequence[Task]
    ) -> None:
        cases = _cases(tasks) * 3
        for (task, answer), verdict in zip(cases, made.score_at_once(cases), strict=True):
            alone, among_others = _repeatable(made.score(task, answer)), _repeatable(verdict)
            assert among_others == alone, (
                f"{answer!r} scores {alone} alone and {among_others} among others"
            )

    def test_the_class_states_the_version(self, spec: RewardSpec) -> None:
        assert reward_version(spec).startswith(f"{spec.name}/")

    def test_an_unknown_option_is_refused(
        self, spec: RewardSpec, options: Mapping[str, Any]
    ) -> None:
        with (
            pytest.raises(ConfigError, match="no_such_option"),
            asked(spec, {**options, **UNKNOWN}),
        ):
            pass


def check_payloads(where: Environment, tasks: Sequence[Task]) -> None:
    """Check that every payload is plain JSON without gold, and usable by the environment here."""
    for task in tasks:
        # What a runner gets may reach the agent, and travels to other machines as JSON.
        payload = where.payload(task, LIMITS)
        sent = json.dumps(payload)
        assert json.loads(sent) == payload, f"what a runner gets of {task.id} is no plain JSON"
        assert len(task.gold) < SHORT_GOLD or task.gold not in sent, (
            f"{task.id} sends its gold along"
        )
        where.check(payload)


def _files(task: Task) -> dict[Path, bytes]:
    """Return the files that a task's data name, and others of their kind in the same folders."""
    contents = {}
    for value in task.data.values():
        if isinstance(value, str) and Path(value).is_file():
            path = Path(value)
            # A reward may write next to the file, such as a journal of a database.
            for file in path.parent.glob(f"*{path.suffix}"):
                contents[file] = file.read_bytes()
    return contents


def _task_set(spec: TaskSetSpec, options: Mapping[str, Any]) -> TaskSet:
    made: TaskSet = make(spec, options, "task.options")
    return made


@contextmanager
def asked(
    spec: RewardSpec, options: Mapping[str, Any], left: Left = lambda answer: None
) -> Iterator[Asked]:
    """Yield a reward with its options and an event loop of its own."""
    reward = {"name": spec.name, "options": dict(options), "concurrency": 4}
    scorer = Scorer(Config.model_validate({"reward": reward}))
    with asyncio.Runner() as runner:
        yield Asked(scorer, runner, left)


def _cases(tasks: Sequence[Task]) -> list[tuple[Task, str]]:
    """Return every task with its own gold, with the first one's, and with another answer."""
    cases = []
    for task in tasks:
        cases += [(task, task.gold), (task, tasks[0].gold), (task, "SELECT 1")]
    return cases


def _repeatable(verdict: Verdict) -> tuple[object, ...]:
    """Return the repeatable part of a verdict; its reason may contain times."""
    return verdict.value, verdict.parts, verdict.by_role, verdict.flags, verdict.executed


def _different(loaded: Mapping[str, Sequence[Task]]) -> list[Task]:
    """Return the tasks of all splits once, since splits may overlap."""
    by_id: dict[str, Task] = {}
    for tasks in loaded.values():
        for task in tasks:
            by_id[task.id] = task
    return list(by_id.values())

"""Measure an agent on a split: the rollouts and scoring of a training, without the training."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from harness.config import Config, resolve_device
from harness.contracts.queue import Queue
from harness.errors import ConfigError, RunFailed
from harness.plugins import make_task_set, reward_of, roles_of, task_set_spec
from harness.policies.demonstrations import demonstrations_in
from harness.policies.roles import Answerer, answerers, answering
from harness.records import Task
from harness.rollout.session import Session
from harness.rollout.stack import RolloutWork
from harness.runs.folder import RunFolder
from harness.runs.monitor import over_the_limit
from harness.runs.reading import with_failed
from harness.runs.replies import replies_of
from harness.runs.rows import Episode
from harness.runs.schema import Accuracy, Parent, RunRecord, Scores
from harness.runs.split_readings import write_down
from harness.runs.training_signal import mixed_tasks
from harness.training.data import load_tasks
from harness.training.launch import StartedRun, recorded
from harness.training.record import agent_failures
from harness.training.task_order import validation_order
from harness.util.endpoints import Endpoint
from harness.util.formatting import difficulty_order, is_graded

TOLD_S = 1.0
"""Seconds between progress reports while no rollout ends."""


def evaluate(
    config: Config,
    folder: RunFolder,
    endpoint: Endpoint,
    on_progress: Callable[[int, int], None],
    policy: str = "",
    parent: Parent | None = None,
    answers: Mapping[str, Answerer] | None = None,
) -> RunRecord:
    """Run every task of the validation split against an endpoint and score it.

    `config.eval` sets samples and temperature.

    Args:
        on_progress: Called with the finished and the total number of rollouts, whenever one ends
            and every second.
        policy: The endpoint's policy, for the record: a folder, an id, or empty if unknown.
        parent: The run that trained the policy.
        answers: Result of `answerers` for `config.roles`, if already known.

    Returns:
        The record as written to `run.json`; its `result` has accuracy, interval and counts.

    Raises:
        ConfigError: An option of the task set or the reward does not fit, or the policy's
            demonstrations are of other roles than the agent's; nothing was started.
        EnvironmentProblem: The disk has no room for the results.
        RunFailed: Too many rollouts brought no result, the workers keep dying, or the disk is full.
    """
    task_set = make_task_set(config)
    tasks = validation_order(load_tasks(config, task_set, config.task.val_split), config)
    identity = policy or endpoint.label
    _check_demonstrations(config, policy)
    answers = answerers(config) if answers is None else answers
    run = StartedRun(
        config, folder, task_set, [], tasks, identity, resolve_device(config.device), answers
    )

    def result(record: RunRecord) -> Scores:
        rows, spec = list(folder.rows("episodes")), reward_of(config)
        span = with_failed(spec.low, spec.high)
        return accuracy_of(rows, len(tasks), config.eval.samples, span, graded=record["graded"])

    with folder.locked(), recorded(run, "eval", result, parent=parent):
        folder.write_config(config)
        if config.task.val_split in task_set_spec(config.task.name).reserved:
            write_down(folder, folder.read())
        with answering(answers, config, folder.logs) as run.roles:
            _Evaluation(run, endpoint, on_progress).execute()
        if config.eval.samples > 1:
            rewards = [(row["task_id"], row["reward"]) for row in folder.rows("episodes")]
            folder.write_mixed(mixed_tasks(rewards))
    return folder.read()


def _check_demonstrations(config: Config, policy: str) -> None:
    """Refuse a policy with demonstrations of which the agent could use none.

    Raises:
        ConfigError: None of its roles is a role of the agent that the policy answers.
    """
    shown = demonstrations_in(policy).by_role
    roles = [role for role in roles_of(config.agent) if role not in config.roles]
    if shown and not set(shown) & set(roles):
        raise ConfigError(
            f"agent: {policy} has demonstrations for the roles {', '.join(shown)}, and it answers "
            f"{', '.join(roles)} of {config.agent}. Measure an agent with these roles"
        )


def accuracy_of(
    rows: Sequence[Episode],
    tasks: int,
    samples: int = 1,
    span: tuple[float, float] = (0.0, 1.0),
    *,
    graded: bool = False,
) -> Scores:
    """Return accuracy with the 95 % interval of `harness compare`, and counts of other outcomes.

    `agent_failed` counts failures of the agent (scored as wrong). `bounds` is the accuracy if all
    unscored rollouts were wrong, and if all were right.

    Args:
        tasks: Number of tasks, each with `samples` rollouts.
        span: Lowest and highest reward.
        graded: Whether the reward declares so; values other than 0 and 1 imply it.
    """
    import polars as pl

    from harness.compare.estimates import accuracy as estimate
    from harness.compare.sampled import COLUMNS, summary

    expected = tasks * samples
    scored: list[float] = []
    outcomes: Counter[str] = Counter()
    flags: Counter[str] = Counter()
    with_tools = parsed = unread = 0
    cells = []
    for row in rows:
        if row["reward"] is not None:
            scored.append(row["reward"])
        # The rollout succeeded, but its reward gave no value.
        unscored = row["outcome"] == "ok" and row["reward"] is None
        outcomes["unscored" if unscored else row["outcome"]] += 1
        flags.update(row["reward_flags"])
        with_tools += bool(row.get("calls_with_tools"))
        parsed += bool(row.get("parsed_calls"))
        unread += bool(row.get("unread_calls"))
        # An evaluation counts as one seed: its interval is over tasks.
        cell: dict[str, object] = {"seed": 0}
        for name in COLUMNS[1:]:
            cell[name] = row.get(name)
        cells.append(cell)
    failed, why = agent_failures(rows)
    # Inferred from all rows: the first ones may have no reward at all.
    table = pl.DataFrame(cells, COLUMNS, infer_schema_length=None)
    # Samples of a task are not independent, so the interval is over the means of tasks.
    keys = COLUMNS[:3]
    each = table.drop_nulls("reward").group_by(keys).agg(value=pl.mean("reward")).sort(keys)
    estimated = estimate(each, span)
    bounds = None
    if expected:
        bounds = []
        # Assume the lowest reward for every unscored rollout, then the highest.
        for reward in span:
            bounds.append((sum(scored) + reward * (expected - len(scored))) / expected)
    result: Scores = {
        "accuracy": estimated.mean if estimated else None,
        "graded": graded or is_graded(scored),
        "interval_95": [round(estimated.low, 4), round(estimated.high, 4)] if estimated else None,
        "tasks": tasks,
        "scored": len(scored),
        "unscored": expected - len(scored),
        "agent_failed": failed,
        "agent_failure": why,
        "calls_with_tools": with_tools,
        "parsed_calls": parsed,
        "unread_calls": unread,
        "bounds": bounds,
        "outcomes": dict(outcomes),
        "by_difficulty": _by_difficulty(rows),
        "reward_flags": dict(flags),
        "empty_golds": flags["empty_gold"],
    }
    if replies := replies_of(rows):
        result["replies"] = replies
    if samples > 1:
        result["samples"] = summary(table, samples, span)
    return result


def _by_difficulty(rows: Sequence[Episode]) -> dict[str, Accuracy]:
    """Return means over the tasks of each difficulty that have a scored rollout."""
    levels: dict[str, dict[str, list[float]]] = {}
    for row in rows:
        if row["reward"] is not None:
            level = levels.setdefault(row["difficulty"] or "all", {})
            level.setdefault(row["task_id"], []).append(row["reward"])
    means: dict[str, Accuracy] = {}
    for name in sorted(levels, key=difficulty_order):
        # Each task counts once, however many of its samples were scored.
        by_task = [_mean(rewards) for rewards in levels[name].values()]
        means[name] = {"accuracy": _mean(by_task), "tasks": len(by_task)}
    return means


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


class _Evaluation(RolloutWork):
    def __init__(
        self, run: StartedRun, endpoint: Endpoint, on_progress: Callable[[int, int], None]
    ) -> None:
        folder = run.folder
        super().__init__(
            run.config, endpoint.model, folder.logs, f"{folder.id}-{os.getpid()}", run.roles
        )
        self._folder = folder
        self._endpoint = endpoint
        self._policy = run.model
        self._tasks = run.val
        self._on_progress = on_progress

    async def work(self, queue: Queue) -> None:
        endpoint = self._endpoint
        async with self.gateway.control() as control:
            await control.point(endpoint)
            # Load the measured split only: a task set need not have another one.
            one_split = self.config.task.model_copy(
                update={"train_split": self.config.task.val_split}
            )
            config = self.config.model_copy(update={"task": one_split})
            session = Session(
                config, endpoint.model, queue, control, self._folder, config.eval, self._policy
            )
            gate = asyncio.Semaphore(
                max(1, self.config.rollout.runners) * self.config.rollout.concurrency
            )
            done = 0
            failed: Counter[str] = Counter()

            rollouts = len(self._tasks) * config.eval.samples

            async def measure(task: Task, sample: int) -> None:
                nonlocal done
                async with gate:
                    outcome = await session.rollout(task.id, "val", 0, sample)
                done += 1
                if outcome.reward is None:
                    failed[outcome.reason] += 1
                self._on_progress(done, rollouts)
                share = self.config.rollout.max_failed_share
                if failed.total() > max(share * rollouts, 1):
                    raise RunFailed(
                        f"{failed.total()} of {done} rollouts brought no score, "
                        f"{over_the_limit(share, failed)} "
                        f"All are in `detail` and `reward_reason` of "
                        f"{self._folder.path / 'episodes.parquet'}"
                    )

            async def report() -> None:
                while done < rollouts:
                    self._on_progress(done, rollouts)
                    await asyncio.sleep(TOLD_S)

            reporting = asyncio.create_task(report())
            try:
                async with asyncio.TaskGroup() as group:
                    for task in self._tasks:
                        for sample in range(config.eval.samples):
                            group.create_task(measure(task, sample))
            except BaseExceptionGroup as several:
                # Raise only the first failure, which cancelled the others.
                raise several.exceptions[0] from None
            finally:
                reporting.cancel()

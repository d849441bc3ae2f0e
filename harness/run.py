"""A run from its start to its end, trained or measured: order, record, status, resumption, tables."""

from __future__ import annotations

import json
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from harness.config import Config, TrainConfig, resolve_device
from harness.errors import ConfigError, EnvironmentProblem, HarnessError, RunFailed, TaskSetError, UserError
from harness.gateway.client import Endpoint
from harness.layers import flatten
from harness.ledger import spent
from harness.monitor import Monitor
from harness.order import trained_on, training_order, validation_order, write_dataset
from harness.plugins import (
    agent_spec,
    check_fit,
    checked_options,
    make_reward,
    make_task_set,
    make_trainer,
    reward_identity,
    reward_of,
    reward_spec,
    task_set_spec,
    trained_by,
    trainer_spec,
)
from harness.policies import fetched, resolve
from harness.policies.roles import Answerer, answerers, answering
from harness.policies.roles import check as check_roles
from harness.provenance import model_hash
from harness.records import Task
from harness.results.folder import FULL, RunFolder, undisturbed
from harness.results.schema import Parent, RunRecord, Scores
from harness.results.signal import least_to_train
from harness.results.tables import conclude
from harness.run_record import changed_data, closed, graded, role_models, run_record, training_result
from harness.tasks import TaskSet
from harness.trainers import Progress

ROWS_BYTES = {"train": 64 * 2**20, "eval": 4 * 2**20}
"""Room that the rows, logs and tables of a small run take; without it none is started."""
LEAST_BYTES = 2**20
"""With less room on its disk a training ends: rows and checkpoints would be cut off, and a trainer may not notice."""
RESUMABLE = (
    "train.steps", "train.loggers", "train.keep_checkpoints", "policy.path", "task.options.data_dir",
    *(f"task.options.{name}" for name in ("path", "train", "val", "test", "databases")), "ray_address",
    "rollout.host", "rollout.store", "rollout.runners", "rollout.concurrency", "reward.concurrency",
)  # fmt: skip
"""What may differ when a run goes on: how far, and where things are."""


@dataclass
class StartedRun:
    """A run that goes on, as trainers know it (`trainers.LiveRun`) and as evaluations do, which train nothing.

    Attributes:
        model: Of an evaluation what is measured, in a word.
        answers: What answers roles that the policy does not, by role.
        on_progress: Called with every `poll`.
    """

    config: Config
    folder: RunFolder
    task_set: TaskSet
    train: Sequence[Task]
    val: Sequence[Task]
    model: str
    device: str
    answers: Mapping[str, Answerer] = field(default_factory=dict)
    roles: Mapping[str, Endpoint] = field(default_factory=dict)
    done: int = 0
    validate_first: bool = True
    on_progress: Callable[[Progress], None] = field(default=lambda progress: None, repr=False)

    @property
    def steps(self) -> int:
        """Training steps in all."""
        return len(self.train) // self.config.train.batch_size

    def poll(self) -> None:
        """Take in the rows written since the last call and show the progress; call it a few times a second.

        Raises:
            RunFailed: Too large a share of a step's rollouts failed.
        """
        self.on_progress(self._monitor.poll())

    def full(self) -> str:
        """What to say where the disk has no room to go on; empty where it has."""
        if self.folder.free_bytes() >= LEAST_BYTES:
            return ""
        path = self.folder.path
        return f"No space left on the disk of {path}: make room, then `harness train --resume {path}`"

    @cached_property
    def _monitor(self) -> Monitor:
        rollouts = {"train": self.config.train.batch_size * self.config.rollout.group_size, "val": len(self.val)}
        limit = self.config.rollout.max_failed_share
        of_reward = graded(reward_of(self.config))
        least = least_to_train(self.config.train.model_dump())
        return Monitor(self.folder, self.steps, rollouts, limit, graded=of_reward, least=least)


def check(config: Config, *, trains: bool = True, reads_reserved: bool = False) -> None:
    """Refuse before anything is started what could only fail later.

    Args:
        trains: Whether the trainer is to be used on the device, not just the agent; what only measures needs no
            training split and no trained role.
        reads_reserved: Whether the validation split may be one that is reserved for one reading at the end.

    Raises:
        PluginError: A part that the configuration names is not installed or does not import.
        ConfigError: An option of task set, reward or trainer is unknown or does not fit, the task set has no such
            split, the trainer does not train on the device, `agent_match` is no regular expression or matches none
            of the agent's roles, or as `policies.roles.check`.
    """
    spec = agent_spec(config.agent)
    task_set = task_set_spec(config.task.name)
    asked = {"train_split": config.task.train_split} if trains else {}
    for key, split in (asked | {"val_split": config.task.val_split}).items():
        if split not in task_set.splits:
            raise ConfigError(
                f"task.{key}: {task_set.name!r} has no split {split!r}. Use one of: {', '.join(task_set.splits)}"
            )
        if split in task_set.reserved and not reads_reserved:
            free = ", ".join(name for name in task_set.splits if name not in task_set.reserved)
            raise ConfigError(
                f"task.{key}: {split!r} of {task_set.name!r} is for one reading at the end, when nothing is chosen by "
                f"it any more: `harness eval --read-reserved`, which writes it down. Until then use one of: {free}"
            )
    check_fit(spec.name, task_set.name)
    checked_options(task_set, config.task.options, "task.options")
    make_reward(config)
    if trains:
        trainer, device = trainer_spec(config.train.trainer), resolve_device(config.device)
        if device not in trainer.devices:
            raise ConfigError(
                f"device: {trainer.name!r} does not train on {device!r}. Use one of: {', '.join(trainer.devices)}"
            )
    pattern = trained_by(config.agent, config.agent_match)
    try:
        matched = [role for role in spec.roles if re.search(pattern, role)]
    except re.error as error:
        raise ConfigError(f"agent_match {pattern!r} is not a regular expression: {error}") from error
    if trains and not matched:
        raise ConfigError(
            f"agent_match {pattern!r} matches none of the roles of {spec.name}: {', '.join(spec.roles)}. "
            "Name what finds one, for example all: --set agent_match=."
        )
    check_roles(config, matched if trains else ())
    if trains:
        make_trainer(config).check(config)


def check_device(config: Config) -> None:
    """Refuse a GPU where this machine shows none; in a cluster that is joined, others may have it.

    Raises:
        EnvironmentProblem: There is none.
    """
    if config.device == "cuda" and config.ray_address is None and resolve_device("auto") != "cuda":
        raise EnvironmentProblem(
            "device is 'cuda', but no CUDA GPU is visible on this machine: use --preset cpu, "
            "or see what `harness doctor` says of it"
        )


def check_machine(config: Config) -> None:
    """Refuse a training that this machine cannot carry out, before it is announced and its folder is made.

    Raises:
        EnvironmentProblem: As `check_device`, or what the trainer needs is not installed.
    """
    check_device(config)
    make_trainer(config).check_machine(config)


def load_tasks(config: Config, task_set: TaskSet, split: str) -> Sequence[Task]:
    """The tasks of a split.

    Raises:
        TaskSetError: Files are missing or damaged, two tasks have one id, or the reward can judge no answer to one of
            the tasks.
    """
    tasks = task_set.load(split)
    if twice := [one for one, count in Counter(task.id for task in tasks).items() if count > 1]:
        raise TaskSetError(
            f"{len(twice)} ids of {config.task.name}'s split {split!r} are of several tasks, {twice[0]!r} for one: "
            "rows could not tell them apart. Give every task an id of its own"
        )
    if refused := refusals(config, tasks):
        first, reason = next(iter(refused.items()))
        raise TaskSetError(
            f"reward {config.reward.name!r} cannot judge {len(refused)} of {len(tasks)} tasks of {config.task.name}'s "
            f"split {split!r}, the first being {first!r}: {reason}"
        )
    return tasks


def refusals(config: Config, tasks: Sequence[Task]) -> dict[str, str]:
    """Why the reward can judge no answer to a task, by the ids of such tasks."""
    refuses = getattr(make_reward(config), "refuses", None)  # foreign rewards may be older than the method
    return {task.id: reason for task in tasks if (reason := refuses(task))} if refuses else {}


@dataclass(frozen=True)
class Data:
    """What a training is of: the tasks of its splits, as they were read, and the policy that it begins with."""

    task_set: TaskSet
    train: Sequence[Task]
    val: Sequence[Task]
    policy: str
    """What the first policy is loaded from."""
    answers: Mapping[str, Answerer] = field(default_factory=dict)
    """What answers roles that the policy does not."""


def load_data(config: Config, before: RunFolder | None = None) -> Data:
    """What a training is of; policies on Hugging Face are downloaded.

    Args:
        before: The run that goes on with it.

    Raises:
        TaskSetError: As `load_tasks` and `trained_on`.
        ConfigError, EnvironmentProblem: As `policies.fetched` and `answerers`.
        UserError: They, or what judges answers, are not what that run began with.
    """
    task_set = make_task_set(config)
    train, val = (load_tasks(config, task_set, split) for split in (config.task.train_split, config.task.val_split))
    train = trained_on(train, config)
    if before is not None:
        same_parts(before, config, task_set)
    return Data(task_set, train, val, _policy(config, before), _answers(config, before))


def _answers(config: Config, before: RunFolder | None) -> dict[str, Answerer]:
    return answerers(config, before.read()["identity"].get("role_models") if before is not None else None)


def _policy(config: Config, before: RunFolder | None) -> str:
    """The first policy's folder, of a run that goes on at the revision that it began with."""
    policy = config.policy
    if config.nodes > 1 or config.ray_address is not None:  # other machines may not have the folder: they download it
        found = resolve(policy.path)
        if policy.revision is not None and model_hash(found) == found:
            raise ConfigError(
                f"policy.revision: nodes of a cluster download the newest {found} each. Download {policy.revision!r} "
                "to a folder that all of them have, and name that"
            )
        return found
    name, _, commit = before.read()["identity"]["model"].partition("@") if before is not None else ("", "", "")
    began_with = {"revision": commit} if commit and name == policy.path else {}
    return fetched(policy.model_copy(update=began_with))


def same_run(before: Config, after: Config) -> None:
    """Refuse a change that would make one run of two.

    Raises:
        UserError: A key outside of `RESUMABLE` differs.
    """
    old, new = flatten(before.dump()), flatten(after.dump())
    for key in _changed(old, new):
        if key not in RESUMABLE and not key.startswith(("reward.options.", "roles.")):
            raise UserError(
                f"--resume with {key}={new.get(key)!r}, but the run has {old.get(key)!r}: that would be another run. "
                f"Start one with --config, or change only {', '.join(RESUMABLE)}"
            )


def same_parts(folder: RunFolder, config: Config, task_set: TaskSet) -> None:
    """Refuse questions, databases, verdicts, a policy or an agent that are not those of the run's first launch.

    Raises:
        UserError: The task set describes itself otherwise, what decides a verdict differs, a file that an option
            names included (where a judge is, say, may change), the first policy has other weights, or the agent's
            source changed.
    """
    from harness.parity.certificate import fingerprint

    record = folder.read()
    began = record["identity"]
    reward = reward_identity(reward_spec(config.reward.name), config.reward.options, "reward.options")
    model = model_hash(_policy(config, folder))
    parts: list[tuple[str, Mapping[str, object], Mapping[str, object], str]] = [
        ("the data are not those", began["task_set"], task_set.describe() if began["task_set"] else {}, "the data"),
        ("the reward is not the one", began["reward_options"], reward, "its options and files"),
        ("the policy is not the one", {"model": began["model"]}, {"model": model}, "policy.path"),
        ("a role's model is not the one", began.get("role_models", {}), role_models(_answers(config, folder)), "roles"),
    ]  # fmt: skip
    if "agent_source" in record:  # older runs did not say
        now_is = {"agent_source": fingerprint(config.agent).get("agent_source")}
        parts.append(("the agent is not the one", {"agent_source": record["agent_source"]}, now_is, "its source"))
    for what, before, now, them in parts:
        if changed := _changed(flatten(before), flatten(json.loads(json.dumps(dict(now))))):
            raise UserError(
                f"--resume, but {what} that the run began with ({', '.join(changed)} differ): that would be "
                f"another run. Put {them} back, or start a new run with --config"
            )


def _changed(before: Mapping[str, object], now: Mapping[str, object]) -> list[str]:
    return sorted(key for key in {*before, *now} if before.get(key) != now.get(key))


def train(
    config: Config,
    folder: RunFolder,
    data: Data | None = None,
    *,
    resume: bool = False,
    on_progress: Callable[[Progress], None] = lambda progress: None,
) -> None:
    """Train to the end; everything learned about the run is in its folder, also when this raises.

    Args:
        data: What `load_data` read already.
        resume: Go on from the newest checkpoint in the folder.
        on_progress: Called a few times a second.

    Raises:
        UserError: Another process trains this run, or it would not be the same run.
        ConfigError: The configuration cannot be trained; nothing is recorded then.
        EnvironmentProblem: The disk has no room for the run.
        RunFailed: The run ended early for a reason that the message names; it can be resumed.
        KeyboardInterrupt: It was interrupted; it can be resumed.
    """
    trainer = make_trainer(config)
    with folder.locked():
        if resume:
            same_run(folder.config(), config)
        data = data or load_data(config, folder if resume else None)
        folder.write_config(config)
        run = StartedRun(
            config,
            folder,
            data.task_set,
            training_order(data.train, config),
            validation_order(data.val, config),
            data.policy,
            resolve_device(config.device),
            data.answers,
            on_progress=on_progress,
        )
        write_dataset(folder.path / "data" / "train.parquet", run.train, "train")
        write_dataset(folder.path / "data" / "val.parquet", run.val, "val")
        checkpoints = trainer.checkpoints(folder) if resume else {}
        if checkpoints:
            run.done = max(checkpoints)
            run.validate_first = validation_due(config.train, run.steps, run.done) and not validated(run, run.done)
        needed = trainer.prepare(run)

        def set_aside() -> None:
            if resume:
                folder.drop_after(run.done if checkpoints else -1, validation=run.validate_first)

        def result(record: RunRecord) -> Scores:
            return training_result(folder, record, max(trainer.checkpoints(folder), default=0))

        with recorded(run, "train", result, needed=needed, resumed=resume, before=set_aside):
            if run.done < run.steps or run.validate_first:
                run.poll()  # what earlier launches left is known from here on
                with answering(run.answers, config, folder.logs) as run.roles:
                    trainer.fit(run)


def _end(run: StartedRun, status: str, reason: str, wall_s: float, result: Callable[[RunRecord], Scores]) -> str:
    """Write how a run ended, and its tables; why the tables could not be written, empty where they were."""
    folder = run.folder
    started = folder.read()
    scores = result(started)
    if paid := spent(folder.reward):
        scores["reward_cost"] = paid
    return conclude(folder, closed(started, status, reason, wall_s, scores, changed_data(run.task_set)))


@contextmanager
def recorded(
    run: StartedRun,
    kind: Literal["train", "eval"],
    result: Callable[[RunRecord], Scores],
    *,
    needed: int = 0,
    resumed: bool = False,
    parent: Parent | None = None,
    before: Callable[[], None] = lambda: None,
) -> Iterator[None]:
    """The record of a run around the work itself: written before it, and finished however the work ends.

    Args:
        result: What came of the run, from its rows, given the record.
        needed: Bytes that checkpoints take, those that are there included.
        resumed: The run goes on: its record keeps the history of its launches.
        parent: Where the policy was trained.
        before: Called once there is room for the run.

    Raises:
        EnvironmentProblem: The disk has no room for the run.
        RunFailed: The disk got full.
    """
    folder = run.folder
    saved = sum(file.stat().st_size for file in folder.checkpoints.rglob("*") if file.is_file())
    folder.reserve(ROWS_BYTES[kind] + max(needed - saved, 0))
    before()
    record = run_record(
        run.config,
        folder,
        run.task_set,
        run.train,
        run.val,
        run.model,
        run.device,
        answers=run.answers,
        resumed=resumed,
        kind=kind,
    )
    if kind == "eval":
        record["parent"] = parent
    folder.write(record)
    began = time.monotonic()
    status, reason = "failed", ""
    try:
        yield
        status = "finished"
    except KeyboardInterrupt:
        status, reason = "interrupted", "interrupted by the user"
        raise
    except HarnessError as error:
        reason = str(error)
        raise
    except BaseException as error:
        reason = f"{type(error).__name__}: {error}"
        if isinstance(error, OSError) and error.errno in FULL:
            raise RunFailed(f"{reason}: {folder.path} has no room for the results") from error
        raise
    finally:
        with undisturbed():
            unwritten = _end(run, status, reason, time.monotonic() - began, result)
    if unwritten:
        then = ": make room, then `harness train --resume` writes them" if kind == "train" else ""
        raise RunFailed(f"{unwritten}{then}")


def validation_due(train: TrainConfig, steps: int, step: int) -> bool:
    """Whether a run of `steps` steps is validated after this one."""
    return step == steps or (train.val_every > 0 and step > 0 and step % train.val_every == 0)


def validated(run: StartedRun, step: int) -> bool:
    """Whether the validation after a step ended, and well enough: trainers save a checkpoint before it."""
    rows = [row for row in run.folder.rows("episodes") if row["phase"] == "val" and row["step"] == step]
    failed = sum(row["reward"] is None for row in rows)
    return len(rows) >= len(run.val) and failed <= run.config.rollout.max_failed_share * len(run.val)

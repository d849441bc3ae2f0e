"""The data of a training, and whether they are unchanged when it is resumed."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from harness.config import Config
from harness.contracts.tasks import TaskSet
from harness.errors import ConfigError, TaskSetError, UserError
from harness.plugins import (
    environment,
    environment_of,
    make_reward,
    make_task_set,
    reward_identity,
    reward_spec,
)
from harness.policies import fetched, resolve
from harness.policies.demonstrations import refuse_demonstrations
from harness.policies.roles import Answerer, answerers
from harness.records import Task
from harness.runs.folder import RunFolder
from harness.training.provenance import model_hash
from harness.training.record import role_models, training_reward
from harness.training.task_order import trained_on
from harness.util.parsing import flatten

RESUMABLE = (
    "train.steps", "train.loggers", "train.keep_checkpoints", "policy.path", "task.options.data_dir",
    *(f"task.options.{name}" for name in ("path", "train", "val", "test", "databases")), "ray_address",
    "trusted_network",
    "rollout.host", "rollout.store", "rollout.runners", "rollout.concurrency", "reward.concurrency",
)  # fmt: skip
"""Settings that may differ when a run is resumed: its length, and locations."""


def load_tasks(config: Config, task_set: TaskSet, split: str) -> Sequence[Task]:
    """Return the tasks of a split.

    Raises:
        TaskSetError: Files are missing or damaged, two tasks have one id, or the reward can judge
            no answer to one of the tasks.
    """
    tasks = task_set.load(split)
    times = Counter(task.id for task in tasks)
    twice = [task_id for task_id, count in times.items() if count > 1]
    if twice:
        raise TaskSetError(
            f"{len(twice)} ids of {config.task.name}'s split {split!r} are of several tasks, "
            f"{twice[0]!r} for one: "
            "rows could not tell them apart. Give every task an id of its own"
        )
    by_reward = [config]
    if config.reward.training is not None:
        by_reward.append(config.with_training_reward())
    for judging in by_reward:
        refused = refusals(judging, tasks)
        if not refused:
            continue
        first, reason = next(iter(refused.items()))
        raise TaskSetError(
            f"reward {judging.reward.name!r} cannot judge {len(refused)} of {len(tasks)} tasks "
            f"of {config.task.name}'s "
            f"split {split!r}, the first being {first!r}: {reason}"
        )
    return tasks


def refusals(config: Config, tasks: Sequence[Task]) -> dict[str, str]:
    """Return the tasks that the reward cannot judge, by id, each with the reason."""
    # Rewards of other packages may be older than the method.
    refuses = getattr(make_reward(config), "refuses", None)
    if not refuses:
        return {}
    reasons = {}
    for task in tasks:
        if reason := refuses(task):
            reasons[task.id] = reason
    return reasons


@dataclass(frozen=True)
class Data:
    """The data of a training: the tasks of its splits as read, and its initial policy."""

    task_set: TaskSet
    train: Sequence[Task]
    val: Sequence[Task]
    policy: str
    """Folder or Hugging Face id of the initial policy."""
    answers: Mapping[str, Answerer] = field(default_factory=dict)
    """By role, the models that answer instead of the policy."""


def load_data(config: Config, before: RunFolder | None = None) -> Data:
    """Load the data of a training, and download policies of Hugging Face.

    Args:
        before: The run to resume.

    Raises:
        TaskSetError: As in `load_tasks`, `trained_on` and `check_gold`.
        ConfigError, EnvironmentProblem: As in `policies.fetched` and `answerers`; the policy has
            demonstrations.
        UserError: The data or the reward differ from the resumed run's.
    """
    task_set = make_task_set(config)
    train = load_tasks(config, task_set, config.task.train_split)
    val = load_tasks(config, task_set, config.task.val_split)
    train = trained_on(train, config)
    if config.train.algorithm == "supervised":
        check_gold(config, train)
    if before is not None:
        same_parts(before, config, task_set)
    policy = first_policy(config, before)
    refuse_demonstrations(policy, "policy.path", "Train the policy that it was made from")
    return Data(task_set, train, val, policy, _answers(config, before))


def check_gold(config: Config, tasks: Sequence[Task]) -> None:
    """Refuse supervised training on tasks of which none has a gold answer as text.

    Raises:
        TaskSetError: The message names the task set.
    """
    of_tasks = environment(environment_of(config.task.name))
    if all(of_tasks.gold_answer(task) is None for task in tasks):
        raise TaskSetError(
            f"train.algorithm=supervised: none of the {len(tasks)} training tasks of "
            f"{config.task.name!r} has a gold answer that can be trained on. "
            "Take another task set, or train.algorithm=grpo"
        )


def _answers(config: Config, before: RunFolder | None) -> dict[str, Answerer]:
    began_with = before.read()["identity"].get("role_models") if before is not None else None
    return answerers(config, began_with)


def first_policy(config: Config, before: RunFolder | None = None) -> str:
    """Return the first policy's folder, for a resumed run at its original revision.

    Raises:
        ConfigError, EnvironmentProblem: As in `policies.fetched`; in a cluster, a revision that
        only this machine has.
    """
    policy = config.policy
    # Other machines of a cluster may not have the folder: they download it.
    if config.nodes > 1 or config.ray_address is not None:
        path = resolve(policy.path)
        if policy.revision is not None and model_hash(path) == path:
            raise ConfigError(
                f"policy.revision: nodes of a cluster download the newest {path} each. "
                f"Download {policy.revision!r} "
                "to a folder that all of them have, and name that"
            )
        return path
    if before is None:
        return fetched(policy)
    # The policy may have a newer revision by now, and the run continues with its own.
    name, _, commit = before.read()["identity"]["model"].partition("@")
    began_with = {"revision": commit} if commit and name == policy.path else {}
    return fetched(policy.model_copy(update=began_with))


def same_run(before: Config, after: Config) -> None:
    """Refuse a change of settings with which the run would be another one.

    Raises:
        UserError: A key outside of `RESUMABLE` differs.
    """
    old, new = flatten(before.dump()), flatten(after.dump())
    for key in _changed(old, new):
        if key not in RESUMABLE and not key.startswith(("reward.options.", "roles.")):
            what = "the run's agent is another" if key == "agent" else "that would be another run"
            raise UserError(
                f"--resume with {key}={new.get(key)!r}, but the run has {old.get(key)!r}: {what}. "
                f"Leave {key} as it is, or start a new run with --config"
            )


def same_parts(folder: RunFolder, config: Config, task_set: TaskSet) -> None:
    """Refuse questions, databases, verdicts, a policy or an agent changed since the first launch.

    Raises:
        UserError: The task set's description, the reward's options that decide verdicts (including
            the content of files), the initial policy's weights or the agent's source changed.
    """
    from harness.parity.certificate import fingerprint

    record = folder.read()
    began = record["identity"]
    reward = reward_identity(
        reward_spec(config.reward.name), config.reward.options, "reward.options"
    )
    model = model_hash(first_policy(config, folder))
    trains_on = training_reward(config)
    parts: list[tuple[str, Mapping[str, object], Mapping[str, object], str]] = [
        ("the data are not those", began["task_set"], task_set.describe() if began["task_set"] else {}, "the data"),
        ("the reward is not the one", began["reward_options"], reward, "its options and files"),
        ("the training reward is not the one", began.get("reward_training", {}), trains_on, "its options"),
        ("the policy is not the one", {"model": began["model"]}, {"model": model}, "policy.path"),
        ("a role's model is not the one", began.get("role_models", {}), role_models(_answers(config, folder)), "roles"),
    ]  # fmt: skip
    if "agent_source" in record:
        now_is = {"agent_source": fingerprint(config.agent).get("agent_source")}
        parts.append(
            (
                "the agent is not the one",
                {"agent_source": record["agent_source"]},
                now_is,
                "its source",
            )
        )
    for what, before, now, them in parts:
        # Convert through JSON, because the record has lists in place of tuples.
        present = json.loads(json.dumps(dict(now)))
        if changed := _changed(flatten(before), flatten(present)):
            raise UserError(
                f"--resume, but {what} that the run began with ({', '.join(changed)} differ): "
                "that would be "
                f"another run. Put {them} back, or start a new run with --config"
            )


def _changed(before: Mapping[str, object], now: Mapping[str, object]) -> list[str]:
    return sorted(key for key in {*before, *now} if before.get(key) != now.get(key))

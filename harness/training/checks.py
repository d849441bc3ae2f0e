"""Checks before a run begins: settings that do not fit, and requirements that the machine lacks."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Collection
from urllib.parse import urlsplit

from harness.config import Config, resolve_device
from harness.config.sections import RewardConfig
from harness.errors import ConfigError, EnvironmentProblem, nearest
from harness.plugins import (
    agent_spec,
    check_fit,
    checked_options,
    make_reward,
    make_trainer,
    program,
    program_of,
    task_set_spec,
    trained_by,
    trainer_spec,
)
from harness.plugins.mixtures import one_agent
from harness.policies.roles import check as check_roles
from harness.util.formatting import members

ROWS_BYTES = {"train": 64 * 2**20, "eval": 4 * 2**20}
"""Bytes for rows, logs and tables of a small run; with less free space no run is started."""


def check(config: Config, *, trains: bool = True, reads_reserved: bool = False) -> None:
    """Refuse a run that would fail later, before anything is started.

    Args:
        trains: Whether the run uses the trainer on the device. An evaluation needs no training
            split and no trained role.
        reads_reserved: Whether the validation split may be one reserved for one reading at the end.

    Raises:
        PluginError: A part that the configuration names is not installed or does not import.
        ConfigError: An option of task set, reward or trainer is unknown or does not fit, the task
            set has no such split, the trainer does not train on the device, `agent_match` is no
            regular expression or matches none of the agent's roles, or as `policies.roles.check`,
            `check_supervised` and `check_network`.
    """
    check_network(config, trains=trains)
    spec = agent_spec(config.agent)
    if not trains:
        one_agent(config.agent)
    task_set = task_set_spec(config.task.name)
    splits = {"train_split": config.task.train_split} if trains else {}
    splits["val_split"] = config.task.val_split
    for key, split in splits.items():
        if split not in task_set.splits:
            # An evaluation sets its split by --split.
            named = f"task.{key}" if trains else f"--split (task.{key})"
            raise ConfigError(
                f"{named}: {task_set.name!r} has no split {split!r}"
                f"{nearest(split, task_set.splits, '.')} "
                f"Use one of: {', '.join(task_set.splits)}"
            )
        if split in task_set.reserved and not reads_reserved:
            free = ", ".join(name for name in task_set.splits if name not in task_set.reserved)
            raise ConfigError(
                f"task.{key}: {split!r} of {task_set.name!r} "
                "is for one reading at the end, when nothing is chosen by "
                f"it any more: `harness eval --read-reserved`, which writes it down. "
                f"Until then use one of: {free}"
            )
    check_fit(spec.name, task_set.name)
    checked_options(task_set, config.task.options, "task.options")
    make_reward(config)
    if trains:
        _check_training_reward(config)
        trainer, device = trainer_spec(config.train.trainer), resolve_device(config.device)
        if device not in trainer.devices:
            raise ConfigError(
                f"device: {trainer.name!r} does not train on {device!r}. "
                f"Use one of: {', '.join(trainer.devices)}"
            )
    pattern = trained_by(config.agent, config.agent_match)
    try:
        matched = [role for role in spec.roles if re.search(pattern, role)]
    except re.error as error:
        raise ConfigError(
            f"agent_match {pattern!r} is not a regular expression: {error}"
        ) from error
    for name in members(config.agent) if trains else ():
        roles = agent_spec(name).roles
        if not any(re.search(pattern, role) for role in roles):
            raise ConfigError(
                f"agent_match {pattern!r} matches none of the roles of {name}: "
                f"{', '.join(roles)}. "
                "Use part of a role's name, or train all roles: --agent-match '.'"
            )
    check_roles(config, matched if trains else ())
    if trains:
        if config.train.algorithm == "supervised":
            check_supervised(config, matched)
        make_trainer(config).check(config)


def check_supervised(config: Config, matched: Collection[str]) -> None:
    """Refuse settings that supervised training on gold answers does not support or would ignore.

    Args:
        matched: The roles that `agent_match` finds.

    Raises:
        ConfigError: The agent may send other messages than those that are trained on, its program
            has no reply for a gold answer, that reply's role is not trained, or a setting about
            rewards of training rollouts is set.
    """
    needs = "train.algorithm=supervised"
    spec, of_program = agent_spec(config.agent), program(program_of(config.agent))
    if not of_program.taught_role:
        raise ConfigError(
            f"{needs} needs a program with replies for gold answers (`taught`), "
            f"and {spec.program!r} of agent {spec.name!r} has none: "
            "take an agent of another program, or train.algorithm=grpo"
        )
    if not spec.strict:
        raise ConfigError(
            f"{needs} trains on the messages of the program's reference agent, "
            f"and agent {spec.name!r} may send others (strict=False): "
            f"take a strict agent, for example {of_program.reference}"
        )
    pattern = trained_by(config.agent, config.agent_match)
    if of_program.taught_role not in matched:
        raise ConfigError(
            f"{needs} trains the role {of_program.taught_role!r}, "
            f"which agent_match {pattern!r} does not match: "
            "take a pattern that matches the role, for example --agent-match '.'"
        )
    reward, defaults = config.reward, RewardConfig()
    ignored = {"train.credit": (config.train.credit, "shared")}
    for name in ("shuffle", "inverted", "training"):
        ignored[f"reward.{name}"] = (getattr(reward, name), getattr(defaults, name))
    for key, (value, usual) in ignored.items():
        if value != usual:
            raise ConfigError(
                f"{needs} has no training rollouts, so {key}={value} would be ignored: "
                "leave it out, or take train.algorithm=grpo"
            )


def _check_training_reward(config: Config) -> None:
    """Refuse a reward of trainings that does not fit.

    Raises:
        PluginError: It is not installed or does not import.
        ConfigError: Its options do not fit, or calls are paid by their drafts.
    """
    if config.reward.training is None:
        return
    make_reward(config.with_training_reward(), "reward.training_options")
    # Drafts are valued by `reward.name`, and a call would be paid by another reward than its
    # rollout.
    if config.train.credit != "shared":
        raise ConfigError(
            f"reward.training pays whole rollouts, not calls by {config.train.credit}: "
            "set train.credit=shared"
        )


def check_network(config: Config, *, trains: bool = True) -> None:
    """Refuse a run with other machines unless `trusted_network` is set.

    Ray without a token, torch.distributed and the store of a run in this process require no key
    there, and nothing is encrypted: access to their ports allows executing code and submitting
    rollouts.

    Args:
        trains: Whether the trainer is used; what only measures needs no Ray.

    Raises:
        ConfigError: A setting names another machine, and `trusted_network` is not set.
    """
    if config.trusted_network:
        return
    ray_address = config.ray_address or "local"
    spans = []
    if trains and ray_address != "local" and not _is_loopback(ray_address):
        spans.append(f"ray_address={ray_address}")
    if trains and config.nodes > 1 and config.ray_address is None:
        spans.append(f"nodes={config.nodes}")
    if not _is_loopback(config.rollout.host):
        spans.append(f"rollout.host={config.rollout.host}")
    if config.rollout.store is not None and not _is_loopback(config.rollout.store):
        spans.append(f"rollout.store={config.rollout.store}")
    if spans:
        raise ConfigError(
            f"{', '.join(spans)}: the run spans machines, "
            "and anyone who reaches its ports can execute code in it or hand "
            "in rollouts. Where only trusted machines reach them: --set trusted_network=true"
        )


def _is_loopback(address: str) -> bool:
    """Return whether a host, `host:port` or URL names this machine by a loopback address."""
    bare = address.rpartition("://")[2]
    host = urlsplit(f"//{bare}").hostname if not bare.startswith("::") else bare
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host or "").is_loopback
    except ValueError:  # any other name, or `auto`, which may find any cluster
        return False


def check_device(config: Config) -> None:
    """Refuse a GPU device if this machine has none; other nodes of a joined cluster may have one.

    Raises:
        EnvironmentProblem: There is no GPU.
    """
    if config.device == "cuda" and config.ray_address is None and resolve_device("auto") != "cuda":
        raise EnvironmentProblem(
            "device is 'cuda', but no CUDA GPU is visible on this machine: use --preset cpu, "
            "or see what `harness doctor` says of it"
        )


def check_machine(config: Config) -> None:
    """Refuse a training that this machine cannot carry out, before its folder is made.

    Raises:
        EnvironmentProblem: As `check_device`, or what the trainer needs is not installed.
    """
    check_device(config)
    make_trainer(config).check_machine(config)

"""All hooks of plugins.

A plugin is a module that implements some of them, named by an entry point in group `harness`.

A module declares the API version it was written for: `HARNESS_API = 1`. Hooks return specs, which
name their targets as `package.module:Name`; nothing heavy is imported until a spec is loaded.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import pluggy

HARNESS_API = 1
hookspec = pluggy.HookspecMarker("harness")
hookimpl = pluggy.HookimplMarker("harness")


@dataclass(frozen=True, slots=True)
class Spec:
    """A named part that a plugin provides.

    Attributes:
        name: The name in configurations and commands, for example `my_agent`.
        target: The class or function as `package.module:Name`; imported on first use only.
        summary: One line for `harness plugins`.
    """

    name: str
    target: str
    summary: str


@dataclass(frozen=True, slots=True)
class AgentSpec(Spec):
    """An agent.

    `target` is a class that takes no arguments and follows `harness.contracts.toolbox.Agent`.

    Attributes:
        program: Name of the program that it implements; required.
        roles: The agent's roles, known without importing its framework; by default its program's.
        frameworks: Distributions that a run record lists with their versions.
        strict: Whether the agent sends exactly the shared prompts (parity is demanded), or is an
            idiomatic variant with a measured deviation.
    """

    roles: tuple[str, ...] = ()
    frameworks: tuple[str, ...] = ()
    strict: bool = True
    program: str = ""


class EnvironmentSpec(Spec):
    """An environment.

    `target` is a class that takes no arguments and follows
    `harness.contracts.environments.Environment`.
    """

    __slots__ = ()


class ProgramSpec(Spec):
    """A program.

    `target` is a class that takes no arguments and inherits from
    `harness.contracts.programs.Program`.
    """

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class TaskSetSpec(Spec):
    """A task set. `target` follows `harness.contracts.tasks.TaskSet`.

    Attributes:
        splits: All splits that it loads; a configuration that names another split is refused.
        environment: Name of the environment that its tasks need; required.
        presets: Preset per device, for commands that name no preset; by default `cpu` or `gpu`.
        eval_split: Split of an evaluation that names none; by default the configuration's
            validation split.
        reserved: Splits for one final measurement. Only an evaluation with explicit consent reads
            them, and each reading is recorded.
    """

    splits: tuple[str, ...] = ("train", "val")
    environment: str = ""
    presets: tuple[tuple[str, str], ...] = ()
    eval_split: str = ""
    reserved: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RewardSpec(Spec):
    """A reward.

    `target` is a class that follows `harness.contracts.rewards.RewardFunction` and declares its
    version.

    Attributes:
        low: The lowest value.
        high: The highest value. A value outside the range is a fault of the reward and scores
            nothing.
        ranged: Whether `reward.range` may override the range, because the tasks decide it.
        parts: Names of the parts that its verdicts may have; empty: any name.
        graded: Whether it gives values other than 0 and 1, so that its mean is no accuracy. Also
            true if `reward.range` sets another range.
        answer_form: The form of the answers that it can score, as a sentence for the policy. A
            program that leaves the form open shows it; empty if any text can be scored.
    """

    low: float = 0.0
    high: float = 1.0
    ranged: bool = False
    parts: tuple[str, ...] = ()
    graded: bool = False
    answer_form: str = ""


@dataclass(frozen=True, slots=True)
class TrainerSpec(Spec):
    """A trainer. `target` is a subclass of `harness.contracts.trainers.Trainer`.

    Attributes:
        devices: Devices that it trains on: any of `cpu`, `cuda` and `npu`. Other devices are
            refused.
        options: The section `train` with the trainer's own options: a subclass of
            `harness.TrainConfig`, as `package.module:Name`, with a default for each of them. It is
            imported whenever a configuration names the trainer. By default the trainer has no
            options of its own.
    """

    devices: tuple[str, ...] = ("cpu", "cuda")
    options: str = ""


class CommandSpec(Spec):
    """A command of `harness`.

    `name` is what follows `harness`. With one word, `target` is a Typer application. With two words,
    for a subcommand of `runs` or `data`, it is a function. `summary` is shown in the list of
    commands. harness's own commands take precedence.
    """

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class PolicyServerSpec(Spec):
    """A server of policies. `target` follows `harness.policies.servers.Server`.

    Attributes:
        devices: Devices that it serves policies on: any of `cpu`, `cuda` and `npu`. One installed
            plugin at most serves policies on a device.
    """

    devices: tuple[str, ...] = ("cpu", "cuda", "npu")


class PolicyCatalogueSpec(Spec):
    """A list of named policies.

    `target` is a YAML file in a package, as `package:catalogue.yaml`, with entries as in
    `harness/policies/catalogue.yaml`. The package is found, not imported.
    """

    __slots__ = ()


class ProtocolSpec(Spec):
    """A protocol of the gateway.

    `name` is its path below `/v1/`. `target` is a class that takes no arguments and follows
    `harness.gateway.protocols.ApiProtocol`.
    """

    __slots__ = ()


class AdapterSpec(Spec):
    """An adapter of other libraries' agents in files.

    `target` is a function that takes the object in the file and its `AgentSpec`, and returns what
    makes an agent, or None for what it does not know.
    """

    __slots__ = ()


class QueueSpec(Spec):
    """The queue between a run and its runners.

    `target` is a subclass of `harness.contracts.queue.QueueBackend` that takes no arguments. Where
    rollouts are made, exactly one installed plugin provides a queue.
    """

    __slots__ = ()


class StoreSpec(Spec):
    """A queue of rollouts in a process of its own, used where `rollout.store` is set.

    `target` is a subclass of `harness.contracts.queue.RemoteQueue` that the installed queue can
    run. One installed plugin at most provides a store.
    """

    __slots__ = ()


class LauncherSpec(Spec):
    """A launcher of a study's runs, by the value of `harness study --launcher`.

    `target` is a class that follows `harness_study.launchers.Launcher`.
    """

    __slots__ = ()


class TrackerSpec(Spec):
    """A tracker, by the value of `harness runs export --to`.

    `target` is a function that takes a run and a place, exports the run there, and returns where it
    is. Its further parameters are options of the command.
    """

    __slots__ = ()


class PreparedDataSpec(Spec):
    """The prepared data of a task set, in `harness data list` and `harness data verify`.

    `name` is the task set's. `target` is a class that takes no arguments and follows `Prepared` of
    the plugin that has the command.
    """

    __slots__ = ()


class HarnessHooks:
    """Hook specifications.

    All hooks of a plugin are called once in a process, when it first looks up any part.
    """

    @hookspec
    def harness_agents(self) -> Iterable[AgentSpec]:
        """Return the plugin's agents."""
        raise NotImplementedError

    @hookspec
    def harness_environments(self) -> Iterable[EnvironmentSpec]:
        """Return the plugin's environments."""
        raise NotImplementedError

    @hookspec
    def harness_programs(self) -> Iterable[ProgramSpec]:
        """Return the plugin's programs."""
        raise NotImplementedError

    @hookspec
    def harness_tasks(self) -> Iterable[TaskSetSpec]:
        """Return the plugin's task sets."""
        raise NotImplementedError

    @hookspec
    def harness_rewards(self) -> Iterable[RewardSpec]:
        """Return the plugin's rewards."""
        raise NotImplementedError

    @hookspec
    def harness_trainers(self) -> Iterable[TrainerSpec]:
        """Return the plugin's trainers."""
        raise NotImplementedError

    @hookspec
    def harness_commands(self) -> Iterable[CommandSpec]:
        """Return the plugin's commands."""
        raise NotImplementedError

    @hookspec
    def harness_policy_servers(self) -> Iterable[PolicyServerSpec]:
        """Return the plugin's servers of policies."""
        raise NotImplementedError

    @hookspec
    def harness_policies(self) -> Iterable[PolicyCatalogueSpec]:
        """Return the plugin's catalogues of policies."""
        raise NotImplementedError

    @hookspec
    def harness_protocols(self) -> Iterable[ProtocolSpec]:
        """Return the plugin's protocols."""
        raise NotImplementedError

    @hookspec
    def harness_adapters(self) -> Iterable[AdapterSpec]:
        """Return the plugin's adapters."""
        raise NotImplementedError

    @hookspec
    def harness_queues(self) -> Iterable[QueueSpec]:
        """Return the plugin's queue of rollouts."""
        raise NotImplementedError

    @hookspec
    def harness_stores(self) -> Iterable[StoreSpec]:
        """Return the plugin's stores."""
        raise NotImplementedError

    @hookspec
    def harness_launchers(self) -> Iterable[LauncherSpec]:
        """Return the plugin's launchers."""
        raise NotImplementedError

    @hookspec
    def harness_trackers(self) -> Iterable[TrackerSpec]:
        """Return the plugin's trackers."""
        raise NotImplementedError

    @hookspec
    def harness_prepared_data(self) -> Iterable[PreparedDataSpec]:
        """Return the plugin's prepared data."""
        raise NotImplementedError

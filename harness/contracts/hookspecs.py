"""The six hooks.

A plugin is a module that implements some of them, named by an entry point in group `harness`.

A module declares the API version it was written for: `HARNESS_API = 1`. Hooks return specs, which
name classes as `package.module:Name`; nothing heavy is imported until a spec is loaded.
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
        target: The class as `package.module:Name`; imported on first use only.
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


@dataclass(frozen=True, slots=True)
class EnvironmentSpec(Spec):
    """An environment.

    `target` is a class that takes no arguments and follows
    `harness.contracts.environments.Environment`.
    """


@dataclass(frozen=True, slots=True)
class ProgramSpec(Spec):
    """A program.

    `target` is a class that takes no arguments and follows `harness.contracts.programs.Program`.
    """


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
    """

    low: float = 0.0
    high: float = 1.0
    ranged: bool = False
    parts: tuple[str, ...] = ()
    graded: bool = False


@dataclass(frozen=True, slots=True)
class TrainerSpec(Spec):
    """A trainer. `target` is a subclass of `harness.contracts.trainers.Trainer`.

    Attributes:
        devices: Devices that it trains on: any of `cpu`, `cuda` and `npu`. Other devices are
            refused.
    """

    devices: tuple[str, ...] = ("cpu", "cuda")


class HarnessHooks:
    """Hook specifications."""

    @hookspec
    def harness_agents(self) -> Iterable[AgentSpec]:
        """Return the plugin's agents. Runs when agents are listed or looked up."""
        raise NotImplementedError

    @hookspec
    def harness_environments(self) -> Iterable[EnvironmentSpec]:
        """Return the plugin's environments. Runs when environments are listed or looked up."""
        raise NotImplementedError

    @hookspec
    def harness_programs(self) -> Iterable[ProgramSpec]:
        """Return the plugin's programs. Runs when programs are listed or looked up."""
        raise NotImplementedError

    @hookspec
    def harness_tasks(self) -> Iterable[TaskSetSpec]:
        """Return the plugin's task sets. Runs when task sets are listed or looked up."""
        raise NotImplementedError

    @hookspec
    def harness_rewards(self) -> Iterable[RewardSpec]:
        """Return the plugin's rewards. Runs when rewards are listed or looked up."""
        raise NotImplementedError

    @hookspec
    def harness_trainers(self) -> Iterable[TrainerSpec]:
        """Return the plugin's trainers. Runs when trainers are listed or looked up."""
        raise NotImplementedError

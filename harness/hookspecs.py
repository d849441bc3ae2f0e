"""The six hooks. A plugin is a module with one or more of them, named by an entry point in group `harness`.

A module states the API it was written for: `HARNESS_API = 1`. Hooks return specs, which name classes
as `package.module:Name`; nothing heavy is imported until a spec is loaded.
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
    """A named part that a plugin offers.

    Attributes:
        name: What users write, for example `my_agent`.
        target: The class as `package.module:Name`; imported on first use only.
        summary: One line for `harness plugins`.
    """

    name: str
    target: str
    summary: str


@dataclass(frozen=True, slots=True)
class AgentSpec(Spec):
    """An agent. `target` is a class without arguments that follows `harness.toolbox.Agent`.

    Attributes:
        program: What it does, by name; must be given.
        roles: The agent's roles, known without importing its framework; by default its program's.
        frameworks: Distributions whose versions belong in a run record.
        strict: Whether the agent sends exactly the shared prompts (parity is demanded), or is an
            idiomatic variant whose deviation is measured.
    """

    roles: tuple[str, ...] = ()
    frameworks: tuple[str, ...] = ()
    strict: bool = True
    program: str = ""


@dataclass(frozen=True, slots=True)
class EnvironmentSpec(Spec):
    """An environment. `target` is a class without arguments that follows `harness.environments.Environment`."""


@dataclass(frozen=True, slots=True)
class ProgramSpec(Spec):
    """A program. `target` is a class without arguments that follows `harness.programs.Program`."""


@dataclass(frozen=True, slots=True)
class TaskSetSpec(Spec):
    """A task set. `target` follows `harness.tasks.TaskSet`.

    Attributes:
        splits: Every split that it loads; a configuration that names another is refused.
        environment: What its tasks are about, by name; must be given.
        presets: Device and preset, for where a command names no preset; by default `cpu` or `gpu`.
        eval_split: What an evaluation measures where it names no split; by default the configuration's validation.
        reserved: Splits for one reading at the end, when all is chosen: only an evaluation reads them, where it is told
            to, and each reading is written down.
    """

    splits: tuple[str, ...] = ("train", "val")
    environment: str = ""
    presets: tuple[tuple[str, str], ...] = ()
    eval_split: str = ""
    reserved: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RewardSpec(Spec):
    """A reward. `target` is a class that follows `harness.rewards.RewardFunction` and states the version.

    Attributes:
        low: The lowest value that it gives.
        high: The highest; a value outside of the range is the reward's fault and scores nothing.
        ranged: Whether `reward.range` may say otherwise: the tasks decide what it gives.
        parts: Names of the parts that its verdicts may have; empty: any.
        graded: Whether it gives values other than 0 and 1, so that its means are no accuracy; so with another range.
    """

    low: float = 0.0
    high: float = 1.0
    ranged: bool = False
    parts: tuple[str, ...] = ()
    graded: bool = False


@dataclass(frozen=True, slots=True)
class TrainerSpec(Spec):
    """A trainer. `target` is a subclass of `harness.trainers.Trainer`.

    Attributes:
        devices: What it trains on, of `cpu`, `cuda` and `npu`; a configuration with another is refused.
    """

    devices: tuple[str, ...] = ("cpu", "cuda")


class HarnessHooks:
    """Hook specifications."""

    @hookspec
    def harness_agents(self) -> Iterable[AgentSpec]:
        """Runs when agents are listed or looked up: the plugin's agents."""
        raise NotImplementedError

    @hookspec
    def harness_environments(self) -> Iterable[EnvironmentSpec]:
        """Runs when environments are listed or looked up: the plugin's environments."""
        raise NotImplementedError

    @hookspec
    def harness_programs(self) -> Iterable[ProgramSpec]:
        """Runs when programs are listed or looked up: the plugin's programs."""
        raise NotImplementedError

    @hookspec
    def harness_tasks(self) -> Iterable[TaskSetSpec]:
        """Runs when task sets are listed or looked up: the plugin's task sets."""
        raise NotImplementedError

    @hookspec
    def harness_rewards(self) -> Iterable[RewardSpec]:
        """Runs when rewards are listed or looked up: the plugin's rewards."""
        raise NotImplementedError

    @hookspec
    def harness_trainers(self) -> Iterable[TrainerSpec]:
        """Runs when trainers are listed or looked up: the plugin's trainers."""
        raise NotImplementedError

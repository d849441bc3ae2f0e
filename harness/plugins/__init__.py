"""Parts that plugins provide: look up by name, import, and build with options."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from importlib.metadata import PackageNotFoundError, entry_points, version
from typing import TYPE_CHECKING, Any, get_type_hints

from harness.contracts.hookspecs import (
    AgentSpec,
    EnvironmentSpec,
    ProgramSpec,
    RewardSpec,
    Spec,
    TaskSetSpec,
    TrainerSpec,
)
from harness.errors import ConfigError, PluginError, nearest
from harness.plugins import one_file
from harness.plugins.discovery import GROUP, Registry
from harness.plugins.discovery import KINDS as KINDS
from harness.plugins.mixtures import mixture_of, one_agent
from harness.util.formatting import members

if TYPE_CHECKING:
    from harness.config import Config
    from harness.config.sections import TrainConfig
    from harness.contracts.environments import Environment
    from harness.contracts.programs import Program
    from harness.contracts.rewards import RewardFunction
    from harness.contracts.tasks import TaskSet
    from harness.contracts.trainers import Trainer


@cache
def registry() -> Registry:
    """Return the plugins of this environment, discovered once per process."""
    return Registry(entry_points(group=GROUP))


def agent_spec(name: str) -> AgentSpec:
    """Return the agent called `name`, with its program's roles if it names none.

    Raises:
        PluginError: It is not installed.
        ConfigError: It is a mixture of agents that do not fit together.
    """
    names = members(name)
    if len(names) > 1:
        return mixture_of([agent_spec(one) for one in names])
    spec = registry().spec("agent", name, AgentSpec)
    return spec if spec.roles else replace(spec, roles=program(spec.program).roles)


def task_set_spec(name: str) -> TaskSetSpec:
    """Return the task set called `name`."""
    return registry().spec("task set", name, TaskSetSpec)


def reward_spec(name: str) -> RewardSpec:
    """Return the reward called `name`."""
    return registry().spec("reward", name, RewardSpec)


def answer_form(name: str, options: Mapping[str, Any]) -> str:
    """Return the form of the answers that a reward with these options scores; empty: any text.

    A reward with a form that follows from its options has a class method `answer_form`.
    """
    spec = reward_spec(name)
    if spec.answer_form:
        return spec.answer_form
    by_options = getattr(load(spec), "answer_form", None)
    form: str | None = by_options(options) if by_options is not None else None
    return form or ""


def trainer_spec(name: str) -> TrainerSpec:
    """Return the trainer called `name`."""
    return registry().spec("trainer", name, TrainerSpec)


def train_section(trainer: str) -> type[TrainConfig]:
    """Return the section `train` of a trainer, with its own options if it has any.

    Raises:
        PluginError: The section does not import, or is no subclass of `TrainConfig`.
    """
    from harness.config.sections import TrainConfig, UncheckedTrainConfig

    # Without the trainer, configurations can still be read.
    if trainer not in {spec.name for spec in registry().specs("trainer")}:
        return UncheckedTrainConfig
    spec = trainer_spec(trainer)
    if not spec.options:
        return TrainConfig
    section = load(replace(spec, target=spec.options))
    if not isinstance(section, type) or not issubclass(section, TrainConfig):
        raise PluginError(
            f"trainer {trainer!r}: {spec.options} must be a section: "
            "write `class Options(harness.TrainConfig)`"
        )
    return section


def program_of(agent: str) -> str:
    """Return the name of an agent's program."""
    return agent_spec(agent).program


def trained_by(agent: str, agent_match: str | None = None) -> str:
    """Return the pattern of trained roles: the given one, the program's, or all answering roles."""
    if agent_match is not None:
        return agent_match
    of_agent = program(program_of(agent))
    own: str = getattr(of_agent, "trains", "")
    if own:
        return own
    # The reward scores answers, and checkers write none.
    answering = [role for role in of_agent.roles if role not in of_agent.checkers]
    return "|".join(map(re.escape, answering))


def offers_tools(agent: str) -> bool:
    """Return whether an agent may offer tools to the model, in requests or in its own format."""
    return program(program_of(agent)).calls_tools or not agent_spec(agent).strict


def roles_of(agent: str) -> tuple[str, ...]:
    """Return the roles that a reward may score: those of the agent and of its program."""
    return tuple(dict.fromkeys([*agent_spec(agent).roles, *program(program_of(agent)).roles]))


def agents_of(program: str | None = None) -> list[str]:
    """Return the names of a program's installed agents, or of all, in the order of the registry.

    Agents in files are not among them, even those that this process has loaded.
    """
    names: list[str] = []
    for spec in registry().specs("agent"):
        if one_file.is_file(spec.target):
            continue
        if program in (None, program_of(spec.name)):
            names.append(spec.name)
    return names


def is_reference(agent: str) -> bool:
    """Return whether other agents of its program are compared with this one."""
    of_agent = _usable_program(agent)
    return of_agent is not None and of_agent.reference == agent


def environment_of(task_set: str) -> str:
    """Return the name of a task set's environment."""
    return task_set_spec(task_set).environment


@cache
def program(name: str) -> Program:
    """Return the program called `name`, built once per process.

    Raises:
        PluginError: No plugin provides it, or it does not import.
    """
    made: Program = load(registry().spec("program", name, ProgramSpec))()
    return made


@cache
def environment(name: str) -> Environment:
    """Return the environment called `name`, built once per process.

    Raises:
        PluginError: No plugin provides it, it does not import, or is no `Environment`.
    """
    from harness.contracts.environments import Environment

    spec = registry().spec("environment", name, EnvironmentSpec)
    made = load(spec)()
    if not isinstance(made, Environment):
        kind = type(made).__name__
        raise PluginError(
            f"environment {name!r}: {spec.target} must be one: "
            f"write `class {kind}(harness.Environment)`"
        )
    return made


def check_fit(agent: str, task_set: str) -> None:
    """Refuse an agent if its program needs another environment than the task set's.

    Raises:
        ConfigError: They do not fit; the message names agents and task sets that do.
    """
    needs, has = program(program_of(agent)).environment, environment_of(task_set)
    if needs in ("", has):
        return
    agents = []
    for spec in registry().specs("agent"):
        # One agent with a broken program must not hide the others.
        its_program = _usable_program(spec.name)
        if its_program is not None and its_program.environment in ("", has):
            agents.append(spec.name)
    raise ConfigError(
        f"agent: {agent!r} is an agent for the environment {needs!r}, "
        f"the task set {task_set!r} is about {has!r}. "
        f"Agents for it: {', '.join(agents) or 'none installed'}"
    )


def _usable_program(agent: str) -> Program | None:
    """Return an agent's program, or None if it does not import or is unknown on this machine."""
    try:
        return program(program_of(agent))
    except (PluginError, ConfigError):
        return None


def distribution_of(kind: str, name: str) -> str:
    """Return the distribution of the plugin that provides a part."""
    owner = registry().owner(kind, name)
    return next(state.distribution for state in registry().states if state.name == owner)


def load(spec: Spec) -> Any:
    """Import the target of a spec, its framework included.

    Raises:
        PluginError: The target or one of its dependencies cannot be imported.
        ConfigError: It is a mixture of agents, which only a training can run.
    """
    if isinstance(spec, AgentSpec):
        one_agent(spec.name)
    module_name, _, attribute = spec.target.partition(":")
    try:
        if isinstance(spec, AgentSpec) and one_file.is_file(spec.target):
            adapters = map(load, registry().specs("adapter"))
            return one_file.load(spec if spec.roles else agent_spec(spec.name), adapters)
        return getattr(importlib.import_module(module_name), attribute)
    except (ImportError, AttributeError) as error:
        missing = getattr(error, "name", None)
        advice = ""
        # Other errors come from modules that are installed but do not work.
        if isinstance(error, ModuleNotFoundError) and missing:
            advice = f" Install it with: pip install {missing}"
        origin = registry().origin(spec)
        by_whom = f" of {origin}" if origin else ""
        raise PluginError(f"{spec.name!r}{by_whom} failed to import: {error}.{advice}") from error


def make_task_set(config: Config) -> TaskSet:
    """Build the configured task set with its options.

    Raises:
        PluginError: It is not installed or does not import.
        ConfigError: An option is unknown, missing or does not fit.
    """
    check_fit(config.agent, config.task.name)
    task_set: TaskSet = make(task_set_spec(config.task.name), config.task.options, "task.options")
    return task_set


def make_trainer(config: Config) -> Trainer:
    """Build the configured trainer.

    Raises:
        PluginError: It is not installed or does not import.
    """
    trainer: Trainer = load(trainer_spec(config.train.trainer))()
    return trainer


def reward_of(config: Config) -> RewardSpec:
    """Return the configured reward, with the configured range.

    Raises:
        PluginError: It is not installed.
        ConfigError: The reward does not allow another range.
    """
    spec = reward_spec(config.reward.name)
    if config.reward.range is None:
        return spec
    if not spec.ranged:
        raise ConfigError(
            f"reward.range: {spec.name} gives {spec.low:g} to {spec.high:g} with all tasks: "
            "leave it out, or set null"
        )
    return replace(spec, low=config.reward.range[0], high=config.reward.range[1])


def make_reward(config: Config, place: str = "reward.options") -> RewardFunction:
    """Build the configured reward with its options.

    Args:
        place: The key that holds the options, for messages.

    Raises:
        PluginError: It is not installed, does not import, declares no version or has no
            `async def score`.
        ConfigError: An option is unknown, missing or does not fit.
    """
    spec = reward_of(config)
    reward_version(spec)
    reward: RewardFunction = make(spec, config.reward.options, place)
    return reward


def reward_version(spec: RewardSpec) -> str:
    """Return the version that a reward's class declares, without building it.

    Raises:
        PluginError: It does not import, declares no version or has no `async def score`.
    """
    target = load(spec)
    version = getattr(target, "version", None)
    if not isinstance(version, str) or not re.fullmatch(rf"{spec.name}/\S+", version):
        raise PluginError(
            f"reward {spec.name!r} must state its version as '{spec.name}/1', but has {version!r}"
        )
    if not inspect.iscoroutinefunction(getattr(target, "score", None)):
        raise PluginError(
            f"reward {spec.name!r} must have `async def score(self, task, attempt)`, "
            f"but {spec.target} has none. "
            "Write async before def, and hand what blocks to a thread: "
            "await asyncio.to_thread(function, ...)"
        )
    return version


def reward_identity(
    spec: RewardSpec, options: Mapping[str, object], section: str
) -> dict[str, Any]:
    """Return the options that decide a reward's verdicts, without building it.

    The reward's class defines them.

    Raises:
        PluginError: It does not import.
        ConfigError: An option is unknown, missing or does not fit.
    """
    decides = getattr(load(spec), "identity", None)
    return dict(decides(checked_options(spec, options, section))) if decides else dict(options)


def make(spec: Spec, options: Mapping[str, object], section: str) -> Any:
    """Build the target of a spec with options.

    Args:
        section: Section of the configuration that holds the options; begins the message.

    Raises:
        PluginError: It does not import.
        ConfigError: An option is unknown, missing or does not fit.
    """
    target = load(spec)
    fitting = checked_options(spec, options, section)
    try:
        return target(**fitting)
    except (TypeError, ValueError) as error:
        if not options:
            raise  # the error is not caused by an option
        given = ", ".join(f"{name}={value!r}" for name, value in options.items())
        raise ConfigError(
            f"{section}: {spec.name!r} cannot be made with {given} "
            f"({type(error).__name__}: {error}). "
            f"Correct or leave out one of them"
        ) from error


def checked_options(spec: Spec, options: Mapping[str, object], section: str) -> dict[str, Any]:
    """Convert options to the types that the target of a spec declares, such as text to a number.

    Raises:
        PluginError: The target does not import.
        ConfigError: An option is unknown, missing or does not fit.
    """
    from pydantic import ConfigDict, TypeAdapter, ValidationError
    from pydantic.errors import PydanticUserError

    target = load(spec)
    named: dict[str, inspect.Parameter] = {}
    open_ended = False
    for parameter in inspect.signature(target).parameters.values():
        if parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            named[parameter.name] = parameter
        elif parameter.kind is parameter.VAR_KEYWORD:
            open_ended = True
    there = f"Its options: {', '.join(named) or 'none'}"
    for name in options:
        if name not in named and not open_ended:
            hint = nearest(name, named, ".")
            raise ConfigError(
                f"{section}.{name}: {spec.name!r} has no option of that name{hint} {there}"
            )
    for name, parameter in named.items():
        if parameter.default is parameter.empty and name not in options:
            raise ConfigError(f"{section}.{name}: {spec.name!r} needs this option. {there}")
    try:
        hints = get_type_hints(
            target.__init__ if inspect.isclass(target) else target, include_extras=True
        )
    except (NameError, TypeError, AttributeError):
        hints = {}  # names that only type checkers resolve: left to the plugin
    fitting = dict(options)
    for name in hints.keys() & options.keys():
        # pydantic would accept infinity and NaN, which JSON and records cannot hold.
        try:
            adapter = TypeAdapter(hints[name], config=ConfigDict(allow_inf_nan=False))
        except PydanticUserError:
            continue  # not a type of plain data
        try:
            fitting[name] = adapter.validate_python(options[name])
        except ValidationError as error:
            message = error.errors()[0]["msg"]
            raise ConfigError(
                f"{section}.{name} of {spec.name!r}: {message}, got {options[name]!r}. {there}"
            ) from error
    return fitting


def framework_versions(spec: AgentSpec) -> dict[str, str]:
    """Return the installed versions of an agent's frameworks, or "missing"."""
    return {name: _version(name) for name in spec.frameworks}


def _version(distribution: str) -> str:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return "missing"

"""Finds plugins and the parts they offer, without importing any framework.

Every entry point of group `harness` names a module with hook implementations. A module that cannot be
imported, was written for another API, misspells a hook, returns something else from it or claims a taken
name is listed with its problem and left out; the others work on.
"""

from __future__ import annotations

import importlib
import inspect
import math
import re
import reprlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import cache
from importlib.metadata import EntryPoint, PackageNotFoundError, entry_points, version
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeVar, get_type_hints

import pluggy

from harness.environments import Environment
from harness.errors import ConfigError, PluginError, how_to_install, nearest
from harness.hookspecs import (
    HARNESS_API,
    AgentSpec,
    EnvironmentSpec,
    HarnessHooks,
    ProgramSpec,
    RewardSpec,
    Spec,
    TaskSetSpec,
    TrainerSpec,
)

if TYPE_CHECKING:
    from harness.config import Config
    from harness.programs import Program
    from harness.rewards import RewardFunction
    from harness.tasks import TaskSet
    from harness.trainers import Trainer

GROUP = "harness"
DEVICES = ("cpu", "cuda", "npu")
"""What a training may run on."""
KINDS: Mapping[str, tuple[str, type[Spec]]] = {
    "environment": ("harness_environments", EnvironmentSpec),
    "program": ("harness_programs", ProgramSpec),
    "agent": ("harness_agents", AgentSpec),
    "task set": ("harness_tasks", TaskSetSpec),
    "reward": ("harness_rewards", RewardSpec),
    "trainer": ("harness_trainers", TrainerSpec),
}
"""The hook that offers the parts of a kind, and what it returns."""
S = TypeVar("S", bound=Spec)


@dataclass(frozen=True, slots=True)
class PluginState:
    """One plugin as found on this machine.

    Attributes:
        name: The entry point's name.
        distribution: The distribution that brings it, with its version.
        problem: Why it cannot be used, or None.
    """

    name: str
    distribution: str
    version: str
    problem: str | None = None


def plugin_manager() -> pluggy.PluginManager:
    """A manager that knows the hooks and no plugin yet."""
    manager = pluggy.PluginManager("harness")
    manager.add_hookspecs(HarnessHooks)
    return manager


class Registry:
    """All parts of all plugins by kind and name."""

    def __init__(self, found: Iterable[EntryPoint]) -> None:
        self._manager = plugin_manager()
        self._kinds: dict[str, dict[str, Spec]] = {kind: {} for kind in KINDS}
        self._owners: dict[tuple[str, str], str] = {}
        self.states: list[PluginState] = []
        for point in sorted(found, key=lambda point: point.name):
            distribution = point.dist.name if point.dist else "?"
            self._add(point.name, distribution, point.dist.version if point.dist else "?", point.load)

    def _add(self, name: str, distribution: str, dist_version: str, load: Callable[[], Any]) -> None:
        try:
            self._register(name, load())
            problem = None
        except (PluginError, pluggy.PluginValidationError) as error:
            problem = _one_line(error)
        except (Exception, SystemExit) as error:
            said = f"{type(error).__name__}: {_one_line(error)}"
            problem = f"failed to import: {said}. Reinstall {distribution}"
        self.states.append(PluginState(name, distribution, dist_version, problem))

    def _register(self, name: str, module: ModuleType) -> None:
        api = getattr(module, "HARNESS_API", None)
        if api != HARNESS_API:
            raise PluginError(
                f"was written for harness API {api}, this is API {HARNESS_API}. Install a matching release of both"
            )
        taken = name if self._manager.has_plugin(name) else self._manager.get_name(module)
        if taken is not None:
            raise PluginError(f"is the same as plugin {taken!r}, by name or by module. Uninstall one of them")
        try:
            self._manager.register(module, name)
            self._check_hooks(module)
            offers = self._offers(module)
        except BaseException:
            if self._manager.is_registered(module):
                self._manager.unregister(module)
            raise
        for kind, spec in offers:
            self._kinds[kind][spec.name] = spec
            self._owners[(kind, spec.name)] = name

    def _check_hooks(self, module: ModuleType) -> None:
        known = [hook for hook, _ in KINDS.values()]
        try:
            self._manager.check_pending()
        except pluggy.PluginValidationError as error:
            callers = self._manager.get_hookcallers(module) or ()
            unknown = next(caller.name for caller in callers if not caller.has_spec())
            hint = "".join(f"; meant {close}?" for close in get_close_matches(unknown, known, 1))
            raise PluginError(f"has no hook of that name: {unknown}{hint or '.'} Hooks: {', '.join(known)}") from error
        for hook in known:
            if hasattr(module, hook) and self._manager.parse_hookimpl_opts(module, hook) is None:
                raise PluginError(f"has {hook} without @hookimpl, so it is never called. Put @hookimpl above it")

    def _offers(self, module: ModuleType) -> list[tuple[str, Spec]]:
        offers: dict[tuple[str, str], Spec] = {}
        for kind, (hook, of) in KINDS.items():
            for implementation in getattr(self._manager.hook, hook).get_hookimpls():
                for spec in _returned(hook, implementation.function, of) if implementation.plugin is module else ():
                    if (kind, spec.name) in offers:
                        raise PluginError(f"offers {kind} {spec.name!r} twice in {hook}. Rename one of them")
                    owner = self._owners.get((kind, spec.name))
                    if owner is not None:
                        raise PluginError(
                            f"offers {kind} {spec.name!r}, which plugin {owner!r} already offers. Uninstall one of them"
                        )
                    offers[(kind, spec.name)] = spec
        return [(kind, spec) for (kind, _), spec in offers.items()]

    def specs(self, kind: str) -> list[Spec]:
        """All parts of a kind, by name."""
        return [spec for _, spec in sorted(self._kinds[kind].items())]

    def owner(self, kind: str, name: str) -> str:
        """Name of the plugin that offers a part."""
        return self._owners[(kind, name)]

    def spec(self, kind: str, name: str, of: type[S]) -> S:
        """The part called `name`.

        Raises:
            PluginError: No plugin offers it; the message names close matches, or the broken plugin.
        """
        found = self._kinds[kind].get(name)
        if isinstance(found, of):
            return found
        for state in self.states:
            if state.problem and name.removesuffix("_idiomatic") == state.name:
                raise PluginError(f"plugin {state.name!r} {state.problem}")
        hint = nearest(name, self._kinds[kind], ".")
        names = ", ".join(sorted(self._kinds[kind])) or "none"
        broken = "".join(f" Plugin {state.name!r} {state.problem}" for state in self.states if state.problem)
        of_ours = "cpu" if kind == "trainer" else "plugins"
        extra = f" To install what comes with harness: {how_to_install(of_ours)}" if names == "none" else ""
        raise PluginError(
            f"no {kind} called {name!r}{hint} Installed: {names}. `harness plugins` lists all.{broken}{extra}"
        )


def _returned(hook: str, function: Callable[..., Any], of: type[Spec]) -> list[Spec]:
    """What one implementation of a hook returns, checked."""
    wanted = f"{hook} must return a list of {of.__name__}"
    try:
        came = function()
        specs = list(came) if isinstance(came, Iterable) and not isinstance(came, str) else None
    except (Exception, SystemExit) as error:
        raise PluginError(f"failed: {wanted}, but raised {type(error).__name__}: {error}") from error
    if specs is None:
        raise PluginError(f"failed: {wanted}, but returned {type(came).__name__} {reprlib.repr(came)}")
    for spec in specs:
        if not isinstance(spec, of):
            raise PluginError(f"failed: {wanted}, but returned one with {type(spec).__name__} {reprlib.repr(spec)}")
        if fault := _fault(spec):
            raise PluginError(f"failed: {wanted}, but {fault}")
    return specs


def _fault(spec: Spec) -> str | None:
    """What is wrong with a spec's fields."""
    if not isinstance(spec.name, str) or not (spec.name.isascii() and spec.name.isidentifier()):
        return f"the name {spec.name!r} is not letters, digits and underscores, as in my_sql"
    if not isinstance(spec.target, str) or not re.fullmatch(r"\w+(\.\w+)*:\w+", spec.target):
        return f"the target of {spec.name!r} is {spec.target!r}, not package.module:Name"
    if not isinstance(spec.summary, str) or "\n" in spec.summary:
        return f"the summary of {spec.name!r} is {spec.summary!r}, not one line of text"
    for field in ("roles", "frameworks", "splits", "devices", "parts"):
        names = getattr(spec, field, ("-",))
        words = isinstance(names, tuple) and all(
            isinstance(one, str) and re.fullmatch(r"[\w.-]+", one) for one in names
        )
        if not words or len(set(names)) < len(names) or not (names or field in ("frameworks", "parts")):
            return f"{field} of {spec.name!r} is {names!r}, not a tuple of different names"
    return _fault_of_its_kind(spec)


def _fault_of_its_kind(spec: Spec) -> str | None:
    """What is wrong with the fields that only some kinds of specs have."""
    if isinstance(spec, RewardSpec) and not (
        all(isinstance(end, int | float) for end in (spec.low, spec.high))
        and -math.inf < spec.low < spec.high < math.inf
    ):
        return f"the range of {spec.name!r} is {spec.low!r} to {spec.high!r}, not from a number to a greater one"
    if isinstance(spec, TrainerSpec) and (unknown := set(spec.devices) - set(DEVICES)):
        return (
            f"devices of {spec.name!r} has {', '.join(map(repr, sorted(unknown)))}. Use some of: {', '.join(DEVICES)}"
        )
    if isinstance(spec, TaskSetSpec) and spec.eval_split not in ("", *spec.splits):
        return f"eval_split of {spec.name!r} is {spec.eval_split!r}, which is none of its splits"
    if isinstance(spec, TaskSetSpec) and not (isinstance(spec.reserved, tuple) and {*spec.reserved} <= {*spec.splits}):
        return f"reserved of {spec.name!r} is {spec.reserved!r}, not a tuple of some of its splits"
    if isinstance(spec, TaskSetSpec) and not (
        isinstance(spec.presets, tuple)
        and all(isinstance(one, tuple) and len(one) == 2 and one[0] in DEVICES for one in spec.presets)
    ):
        return f"presets of {spec.name!r} is {spec.presets!r}, not a tuple of pairs of device and preset"
    for kind, field in ((AgentSpec, "program"), (TaskSetSpec, "environment")):
        if isinstance(spec, kind) and not getattr(spec, field):
            return f"{spec.name!r} names no {field}; `harness plugins` lists those installed"
    return None


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())


@cache
def registry() -> Registry:
    """The plugins of this environment, found once a process."""
    return Registry(entry_points(group=GROUP))


def agent_spec(name: str) -> AgentSpec:
    """The agent called `name`."""
    return registry().spec("agent", name, AgentSpec)


def task_set_spec(name: str) -> TaskSetSpec:
    """The task set called `name`."""
    return registry().spec("task set", name, TaskSetSpec)


def reward_spec(name: str) -> RewardSpec:
    """The reward called `name`."""
    return registry().spec("reward", name, RewardSpec)


def trainer_spec(name: str) -> TrainerSpec:
    """The trainer called `name`."""
    return registry().spec("trainer", name, TrainerSpec)


def program_of(agent: str) -> str:
    """Name of the program that an agent is a version of."""
    return agent_spec(agent).program


def trained_by(agent: str, agent_match: str | None = None) -> str:
    """The pattern that chooses an agent's trained roles: a given one, or its program's; without, all that answer."""
    if agent_match is not None:
        return agent_match
    of = program(program_of(agent))
    own: str = getattr(of, "trains", "")
    return own or "|".join(re.escape(role) for role in of.roles if role not in of.checkers)


def roles_of(agent: str) -> tuple[str, ...]:
    """The roles that a value can be of: the agent's, and those of its program."""
    return tuple(dict.fromkeys([*agent_spec(agent).roles, *program(program_of(agent)).roles]))


def agents_of(program: str | None = None) -> list[str]:
    """Names of a program's agents, or of all, in the order of the registry."""
    names = [spec.name for spec in registry().specs("agent")]
    return [name for name in names if program in (None, program_of(name))]


def is_reference(agent: str) -> bool:
    """Whether an agent is what others of its program are compared with."""
    of = _usable_program(agent)
    return of is not None and of.reference == agent


def environment_of(task_set: str) -> str:
    """Name of the environment that a task set is about."""
    return task_set_spec(task_set).environment


@cache
def program(name: str) -> Program:
    """The program called `name`, made once a process.

    Raises:
        PluginError: No plugin offers it, or it does not import.
    """
    made: Program = load(registry().spec("program", name, ProgramSpec))()
    return made


@cache
def environment(name: str) -> Environment:
    """The environment called `name`, made once a process.

    Raises:
        PluginError: No plugin offers it, it does not import, or is no `Environment`.
    """
    spec = registry().spec("environment", name, EnvironmentSpec)
    made = load(spec)()
    if not isinstance(made, Environment):
        kind = type(made).__name__
        raise PluginError(f"environment {name!r}: {spec.target} must be one: write `class {kind}(harness.Environment)`")
    return made


def check_fit(agent: str, task_set: str) -> None:
    """Refuse an agent whose program needs another environment than the task set's.

    Raises:
        ConfigError: They do not fit; the message names agents and task sets that do.
    """
    needs, has = program(program_of(agent)).environment, environment_of(task_set)
    if needs in ("", has):
        return
    usable = {one.name: _usable_program(one.name) for one in registry().specs("agent")}
    agents = [name for name, of in usable.items() if of is not None and of.environment in ("", has)]
    raise ConfigError(
        f"agent: {agent!r} is an agent for the environment {needs!r}, the task set {task_set!r} is about {has!r}. "
        f"Agents for it: {', '.join(agents) or 'none installed'}"
    )


def _usable_program(agent: str) -> Program | None:
    """An agent's program; None where it does not import, or the agent is of a run that was made elsewhere."""
    try:
        return program(program_of(agent))
    except PluginError:
        return None


def distribution_of(kind: str, name: str) -> str:
    """The distribution that brings the plugin that offers a part."""
    owner = registry().owner(kind, name)
    return next(state.distribution for state in registry().states if state.name == owner)


def load(spec: Spec) -> Any:
    """Import what a spec names, its framework included.

    Raises:
        PluginError: The target or something it needs cannot be imported.
    """
    module_name, _, attribute = spec.target.partition(":")
    try:
        return getattr(importlib.import_module(module_name), attribute)
    except (ImportError, AttributeError) as error:
        missing = getattr(error, "name", None)
        advice = (
            f" Install it with: pip install {missing}" if isinstance(error, ModuleNotFoundError) and missing else ""
        )
        raise PluginError(f"{spec.name!r} failed to import: {error}.{advice}") from error


def make_task_set(config: Config) -> TaskSet:
    """The configuration's task set, with its options.

    Raises:
        PluginError: It is not installed or does not import.
        ConfigError: An option is unknown, missing or does not fit.
    """
    check_fit(config.agent, config.task.name)
    task_set: TaskSet = make(task_set_spec(config.task.name), config.task.options, "task.options")
    return task_set


def make_trainer(config: Config) -> Trainer:
    """The configuration's trainer.

    Raises:
        PluginError: It is not installed or does not import.
    """
    trainer: Trainer = load(trainer_spec(config.train.trainer))()
    return trainer


def reward_of(config: Config) -> RewardSpec:
    """The configuration's reward, with the range that the configuration states.

    Raises:
        PluginError: It is not installed.
        ConfigError: Its range is its own.
    """
    spec = reward_spec(config.reward.name)
    if config.reward.range is None:
        return spec
    if not spec.ranged:
        raise ConfigError(
            f"reward.range: {spec.name} gives {spec.low:g} to {spec.high:g} whatever the tasks. Leave it out"
        )
    return replace(spec, low=config.reward.range[0], high=config.reward.range[1])


def make_reward(config: Config) -> RewardFunction:
    """The configuration's reward, with its options.

    Raises:
        PluginError: It is not installed, does not import, states no version or has no `async def score`.
        ConfigError: An option is unknown, missing or does not fit.
    """
    spec = reward_of(config)
    reward_version(spec)
    reward: RewardFunction = make(spec, config.reward.options, "reward.options")
    return reward


def reward_version(spec: RewardSpec) -> str:
    """The version that a reward's class states; nothing is built.

    Raises:
        PluginError: It does not import, states none or has no `async def score`.
    """
    target = load(spec)
    version = getattr(target, "version", None)
    if not isinstance(version, str) or not re.fullmatch(rf"{spec.name}/\S+", version):
        raise PluginError(f"reward {spec.name!r} must state its version as '{spec.name}/1', but has {version!r}")
    if not inspect.iscoroutinefunction(getattr(target, "score", None)):
        raise PluginError(
            f"reward {spec.name!r} must have `async def score(self, task, attempt)`, but {spec.target} has none. "
            "Write async before def, and hand what blocks to a thread: await asyncio.to_thread(function, ...)"
        )
    return version


def reward_identity(spec: RewardSpec, options: Mapping[str, Any], section: str) -> dict[str, Any]:
    """What of a reward's options decides its verdicts: all of them, or what its class makes of them; nothing is built.

    Raises:
        PluginError: It does not import.
        ConfigError: An option is unknown, missing or does not fit.
    """
    decides = getattr(load(spec), "identity", None)
    return dict(decides(checked_options(spec, options, section))) if decides else dict(options)


def make(spec: Spec, options: Mapping[str, Any], section: str) -> Any:
    """What a spec names, made with options.

    Args:
        section: Where the options stand in the configuration; begins the message.

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
            raise  # then it is no option's fault
        given = ", ".join(f"{name}={value!r}" for name, value in options.items())
        raise ConfigError(
            f"{section}: {spec.name!r} cannot be made with {given} ({type(error).__name__}: {error}). "
            f"Correct or leave out one of them"
        ) from error


def checked_options(spec: Spec, options: Mapping[str, Any], section: str) -> dict[str, Any]:
    """Options as what a spec names declares them, for example a number given as text as a number.

    Raises:
        PluginError: What the spec names does not import.
        ConfigError: An option is unknown, missing or does not fit.
    """
    from pydantic import ConfigDict, TypeAdapter, ValidationError
    from pydantic.errors import PydanticUserError

    target = load(spec)
    parameters = inspect.signature(target).parameters.values()
    named = {one.name: one for one in parameters if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)}
    there = f"Its options: {', '.join(named) or 'none'}"
    open_ended = any(one.kind is one.VAR_KEYWORD for one in parameters)
    for name in options:
        if name not in named and not open_ended:
            hint = nearest(name, named, ".")
            raise ConfigError(f"{section}.{name}: {spec.name!r} has no option of that name{hint} {there}")
    for name, one in named.items():
        if one.default is one.empty and name not in options:
            raise ConfigError(f"{section}.{name}: {spec.name!r} needs this option. {there}")
    try:
        hints = get_type_hints(target.__init__ if inspect.isclass(target) else target, include_extras=True)
    except (NameError, TypeError, AttributeError):
        hints = {}  # names that only type checkers see: left to the plugin
    fitting = dict(options)
    for name in hints.keys() & options.keys():
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
    """Installed versions of an agent's frameworks; "missing" where one is not installed."""
    return {name: _version(name) for name in spec.frameworks}


def _version(distribution: str) -> str:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return "missing"

"""Discover plugins and check their declarations, without importing any framework.

Every entry point of group `harness` names a module with hook implementations. A module that cannot
be imported, was written for another API, misspells a hook, returns an invalid value or claims a
taken name is listed with its problem and left out; the others still work.
"""

from __future__ import annotations

import math
import re
import reprlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cached_property
from importlib.metadata import EntryPoint
from inspect import isroutine
from types import ModuleType
from typing import TypeVar, cast

import pluggy

from harness.contracts.hookspecs import (
    HARNESS_API,
    AdapterSpec,
    AgentSpec,
    CommandSpec,
    EnvironmentSpec,
    HarnessHooks,
    LauncherSpec,
    PolicyCatalogueSpec,
    PolicyServerSpec,
    PreparedDataSpec,
    ProgramSpec,
    ProtocolSpec,
    QueueSpec,
    RewardSpec,
    Spec,
    StoreSpec,
    TaskSetSpec,
    TrackerSpec,
    TrainerSpec,
)
from harness.errors import PluginError, how_to_install, nearest
from harness.plugins import one_file

GROUP = "harness"
DEVICES = ("cpu", "cuda", "npu")
"""Devices of trainings and of servers of policies."""
KINDS: Mapping[str, tuple[str, type[Spec]]] = {
    "environment": ("harness_environments", EnvironmentSpec),
    "program": ("harness_programs", ProgramSpec),
    "agent": ("harness_agents", AgentSpec),
    "task set": ("harness_tasks", TaskSetSpec),
    "reward": ("harness_rewards", RewardSpec),
    "trainer": ("harness_trainers", TrainerSpec),
    "command": ("harness_commands", CommandSpec),
    "policy server": ("harness_policy_servers", PolicyServerSpec),
    "policy catalogue": ("harness_policies", PolicyCatalogueSpec),
    "protocol": ("harness_protocols", ProtocolSpec),
    "adapter": ("harness_adapters", AdapterSpec),
    "queue": ("harness_queues", QueueSpec),
    "store": ("harness_stores", StoreSpec),
    "launcher": ("harness_launchers", LauncherSpec),
    "tracker": ("harness_trackers", TrackerSpec),
    "prepared data": ("harness_prepared_data", PreparedDataSpec),
}
"""The hook of each kind of part, and the type that it returns."""
_NAMES: Mapping[type[Spec], tuple[str, str]] = {
    CommandSpec: (r"[a-z][\w-]*|(runs|data) [a-z][\w-]*", "a command, as in report or runs export"),
    ProtocolSpec: (r"[\w.-]+", "a path below /v1/, as in responses"),
}
"""Pattern and description of names that need not be identifiers, by kind."""
S = TypeVar("S", bound=Spec)


@dataclass(frozen=True)
class PluginState:
    """One plugin on this machine.

    Attributes:
        point: The entry point.
        problem: Why the plugin cannot be used, or None.
    """

    point: EntryPoint
    problem: str | None = None

    @property
    def name(self) -> str:
        """Return the entry point's name."""
        return self.point.name

    @cached_property
    def distribution(self) -> str:
        """Return the name of the distribution that provides the plugin, or "?"."""
        return self.point.dist.name if self.point.dist else "?"

    @cached_property
    def version(self) -> str:
        """Return the version of the distribution, or "?"."""
        return self.point.dist.version if self.point.dist else "?"


class PluginManager(pluggy.PluginManager):
    """A manager that searches only functions of a module for hooks, which is faster."""

    def parse_hookimpl_opts(self, plugin: object, name: str) -> pluggy.HookimplOpts | None:
        """Return the options of a hook implementation, or None for anything else."""
        if isinstance(plugin, ModuleType) and not isroutine(vars(plugin).get(name)):
            return None
        return super().parse_hookimpl_opts(plugin, name)


def plugin_manager() -> PluginManager:
    """Return a manager with the hooks and no plugin."""
    manager = PluginManager("harness")
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
            self._add(point)

    def _add(self, point: EntryPoint) -> None:
        problem = None
        try:
            self._register(point.name, point.load())
        except (PluginError, pluggy.PluginValidationError) as error:
            problem = _one_line(error)
        except (Exception, SystemExit) as error:
            reason = f"{type(error).__name__}: {_one_line(error)}"
            problem = f"failed to import: {reason}. Reinstall {PluginState(point).distribution}"
        self.states.append(PluginState(point, problem))

    def _register(self, name: str, module: ModuleType) -> None:
        api = getattr(module, "HARNESS_API", None)
        if api != HARNESS_API:
            raise PluginError(
                f"was written for harness API {api}, this is API {HARNESS_API}. "
                "Install a matching release of both"
            )
        taken = name if self._manager.has_plugin(name) else self._manager.get_name(module)
        if taken is not None:
            raise PluginError(
                f"is the same as plugin {taken!r}, by name or by module. Uninstall one of them"
            )
        # Register all parts of a plugin or none: users would not notice missing ones.
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
        hooks = [hook for hook, _ in KINDS.values()]
        for caller in self._manager.get_hookcallers(module) or ():
            if caller.has_spec():
                continue
            # pluggy accepts any name as a hook that may be specified later.
            close = get_close_matches(caller.name, hooks, 1)
            hint = f"; meant {close[0]}?" if close else "."
            raise PluginError(
                f"has no hook of that name: {caller.name}{hint} Hooks: {', '.join(hooks)}"
            )
        for hook in hooks:
            if hasattr(module, hook) and self._manager.parse_hookimpl_opts(module, hook) is None:
                raise PluginError(
                    f"has {hook} without @hookimpl, so it is never called. Put @hookimpl above it"
                )

    def _offers(self, module: ModuleType) -> list[tuple[str, Spec]]:
        offers: dict[tuple[str, str], Spec] = {}
        kinds = {hook: (kind, spec_type) for kind, (hook, spec_type) in KINDS.items()}
        for caller in self._manager.get_hookcallers(module) or ():
            hook = caller.name
            kind, spec_type = kinds[hook]
            for implementation in caller.get_hookimpls():
                # A caller has the implementations of all plugins.
                if implementation.plugin is not module:
                    continue
                for spec in _returned(hook, implementation.function, spec_type):
                    if (kind, spec.name) in offers:
                        raise PluginError(
                            f"offers {kind} {spec.name!r} twice in {hook}. Rename one of them"
                        )
                    owner = self._owners.get((kind, spec.name))
                    if owner is not None:
                        raise PluginError(
                            f"offers {kind} {spec.name!r}, which plugin {owner!r} already offers. "
                            "Uninstall one of them"
                        )
                    offers[(kind, spec.name)] = spec
        return [(kind, spec) for (kind, _), spec in offers.items()]

    def specs(self, kind: str) -> list[Spec]:
        """Return all parts of a kind, by name."""
        return [spec for _, spec in sorted(self._kinds[kind].items())]

    def state(self, name: str) -> PluginState | None:
        """Return the state of a plugin; None for another owner, such as an agent's file."""
        for state in self.states:
            if state.name == name:
                return state
        return None

    def origin(self, spec: Spec) -> str:
        """Return the distribution of the plugin that offers a spec, or an empty text."""
        for kind, (_, spec_type) in KINDS.items():
            owner = self._owners.get((kind, spec.name))
            if type(spec) is spec_type and owner is not None:
                plugin = self.state(owner)
                return plugin.distribution if plugin else ""
        return ""

    def owner(self, kind: str, name: str) -> str:
        """Return the name of the plugin, or of the environment of an agent's file, that offers a part."""
        if kind == "agent":
            name = self._name_of(name)
        return self._owners[(kind, name)]

    def _name_of(self, agent: str) -> str:
        """Return the name of an agent; one in a file is added, under its file's absolute path.

        Raises:
            PluginError: The agent is in a file that cannot be read or that does not define it, or
                no plugin provides its program.
        """
        if agent in self._kinds["agent"] or not one_file.is_file(agent):
            return agent
        spec = one_file.spec_of(agent)
        # An agent without a usable program is not added: every later listing would fail on it.
        self.spec("program", spec.program, ProgramSpec)
        self._kinds["agent"][spec.name] = spec
        self._owners[("agent", spec.name)] = one_file.owner_of(spec)
        return spec.name

    def spec(self, kind: str, name: str, of: type[S]) -> S:
        """Return the part called `name`.

        Raises:
            PluginError: No plugin provides it; the message names close matches, or the broken
                plugin.
        """
        if kind == "agent":
            name = self._name_of(name)
        part = self._kinds[kind].get(name)
        if isinstance(part, of):
            return part
        # Plugins are usually named like their agent, so show the problem of that plugin.
        for state in self.states:
            if state.problem and name.removesuffix("_idiomatic") == state.name:
                raise PluginError(f"plugin {state.name!r} {state.problem}")
        names = ", ".join(sorted(self._kinds[kind])) or "none"
        hint = nearest(name, self._kinds[kind], f". Installed: {names}.")
        # Any broken plugin may be the one that offers the part.
        broken = ""
        for state in self.states:
            if state.problem:
                broken += f" Plugin {state.name!r} {state.problem}"
        extra = ""
        if names == "none":
            command = how_to_install("cpu" if kind == "trainer" else "plugins")
            extra = f" To install what comes with harness: {command}"
        raise PluginError(
            f"no {kind} called {name!r}{hint} `harness plugins` lists all.{broken}{extra}"
        )


def _returned(hook: str, function: Callable[..., object], of: type[Spec]) -> list[Spec]:
    """Return the checked result of one hook implementation."""
    wanted = f"{hook} must return a list of {of.__name__}"
    try:
        returned = function()
        # A text is iterable too, letter by letter.
        several = isinstance(returned, Iterable) and not isinstance(returned, str)
        specs = list(cast(Iterable[Spec], returned)) if several else None
    except (Exception, SystemExit) as error:
        raise PluginError(
            f"failed: {wanted}, but raised {type(error).__name__}: {error}"
        ) from error
    if specs is None:
        raise PluginError(
            f"failed: {wanted}, but returned {type(returned).__name__} {reprlib.repr(returned)}"
        )
    for spec in specs:
        if not isinstance(spec, of):
            raise PluginError(
                f"failed: {wanted}, "
                f"but returned one with {type(spec).__name__} {reprlib.repr(spec)}"
            )
        if fault := _fault(spec):
            raise PluginError(f"failed: {wanted}, but {fault}")
    return specs


def _fault(spec: Spec) -> str | None:
    """Return the fault in a spec's fields, or None."""
    pattern, form = _NAMES.get(
        type(spec), (r"[A-Za-z_]\w*", "letters, digits and underscores, as in my_sql")
    )
    if not isinstance(spec.name, str) or not re.fullmatch(pattern, spec.name, re.ASCII):
        return f"the name {spec.name!r} is not {form}"
    end, form = r"\w+", "package.module:Name"
    if isinstance(spec, PolicyCatalogueSpec):
        end, form = r"[\w.-]+\.yaml", "package:file.yaml"
    if not _is_target(spec.target, end):
        return f"the target of {spec.name!r} is {spec.target!r}, not {form}"
    if not isinstance(spec.summary, str) or "\n" in spec.summary:
        return f"the summary of {spec.name!r} is {spec.summary!r}, not one line of text"
    for field in ("roles", "frameworks", "splits", "devices", "parts"):
        names = getattr(spec, field, ("-",))
        words = isinstance(names, tuple) and all(map(_is_word, names))
        # Roles may be left out where the program has them.
        named = names or field in ("frameworks", "parts") or getattr(spec, "program", "")
        if not (words and named) or len(set(names)) < len(names):
            return f"{field} of {spec.name!r} is {names!r}, not a tuple of different names"
    return _fault_of_its_kind(spec)


def _is_word(name: object) -> bool:
    return type(name) is str and re.fullmatch(r"[\w.-]+", name) is not None


def _fault_of_its_kind(spec: Spec) -> str | None:
    """Return the fault in the fields of one kind of spec, or None."""
    if isinstance(spec, RewardSpec) and not _is_range(spec.low, spec.high):
        return (
            f"the range of {spec.name!r} is {spec.low!r} to {spec.high!r}, "
            "not from a number to a greater one"
        )
    if isinstance(spec, TrainerSpec | PolicyServerSpec):
        unknown = set(spec.devices) - set(DEVICES)
        if unknown:
            return (
                f"devices of {spec.name!r} has {', '.join(map(repr, sorted(unknown)))}. "
                f"Use some of: {', '.join(DEVICES)}"
            )
    if isinstance(spec, TrainerSpec) and spec.options and not _is_target(spec.options):
        return f"options of {spec.name!r} is {spec.options!r}, not package.module:Name"
    if isinstance(spec, TaskSetSpec):
        fault = _fault_of_a_task_set(spec)
        if fault:
            return fault
    for kind, field in ((AgentSpec, "program"), (TaskSetSpec, "environment")):
        if isinstance(spec, kind) and not getattr(spec, field):
            return f"{spec.name!r} names no {field}; `harness plugins` lists those installed"
    return None


def _is_target(value: object, end: str = r"\w+") -> bool:
    return isinstance(value, str) and re.fullmatch(rf"\w+(\.\w+)*:{end}", value) is not None


def _is_range(low: object, high: object) -> bool:
    # The comparison is false for NaN, too.
    if not isinstance(low, int | float) or not isinstance(high, int | float):
        return False
    return -math.inf < low < high < math.inf


def _fault_of_a_task_set(spec: TaskSetSpec) -> str | None:
    """Return the fault in the splits and presets of a task set, or None."""
    if spec.eval_split not in ("", *spec.splits):
        return f"eval_split of {spec.name!r} is {spec.eval_split!r}, which is none of its splits"
    if not isinstance(spec.reserved, tuple) or not {*spec.reserved} <= {*spec.splits}:
        return f"reserved of {spec.name!r} is {spec.reserved!r}, not a tuple of some of its splits"
    if not isinstance(spec.presets, tuple) or not all(map(_is_preset, spec.presets)):
        return (
            f"presets of {spec.name!r} is {spec.presets!r}, "
            "not a tuple of pairs of device and preset"
        )
    return None


def _is_preset(pair: object) -> bool:
    return isinstance(pair, tuple) and len(pair) == 2 and pair[0] in DEVICES


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())

"""Agents in one file: `./my_agent.py:MyAgent` names a class without package or entry point.

Specifications are read from the file's syntax. Nothing is imported before a runner loads the agent,
so that commands and trainers never import the agent's framework.
"""

from __future__ import annotations

import ast
import importlib.util
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from importlib.metadata import packages_distributions
from pathlib import Path
from types import ModuleType
from typing import Any

from harness.contracts.hookspecs import AgentSpec
from harness.errors import PluginError
from harness.util.formatting import agent_label

Adapter = Callable[[object, AgentSpec], Callable[[], Any] | None]
"""Make an agent's class of a file's object, or None."""
_REFERENCE = re.compile(r"(?P<file>.+\.py):(?P<name>[A-Za-z_]\w*)(?:@(?P<program>[A-Za-z_]\w*))?")
_LONGEST_PATH = 255
"""Characters of the longest text that is looked up as a path."""
_STATED = ("roles", "program", "strict", "frameworks")
"""Attributes of the class that its specification takes; each is a literal."""
_Class = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef | ast.Assign


def is_file(agent: str) -> bool:
    """Return whether a name of an agent, or a specification's target, names a class in a file."""
    return _REFERENCE.fullmatch(agent) is not None


def spec_of(reference: str) -> AgentSpec:
    """Return the specification of `FILE.py:NAME[@PROGRAM]`, named by its absolute path.

    The class states `program`, and may state `roles`, `strict` and `frameworks`. A class without
    `solve` is another library's agent: it is not strict, and `@PROGRAM` can state its program
    without a change to the file.

    Raises:
        PluginError: The file or name does not exist, is no Python, or an attribute is invalid.
    """
    file, name, program = _parts(reference)
    tree = _syntax(file)
    stated = _stated(tree, name, reference)
    program = program or str(stated.get("program", ""))
    if not program:
        raise PluginError(
            f'agent {reference!r} states no program. Write `program = "tool_loop"` in the class, or name it: '
            f"--agent {reference}@tool_loop"
        )
    roles = stated.get("roles", ())
    frameworks = stated.get("frameworks")
    if frameworks is None:
        frameworks = _frameworks(file, tree)
    for attribute, value in {"roles": roles, "frameworks": frameworks}.items():
        # A text alone would be read as a tuple of its letters.
        texts = isinstance(value, tuple | list) and all(isinstance(item, str) for item in value)
        if not texts:
            raise PluginError(
                f'agent {reference!r}: {attribute} is {value!r}. Write a tuple of texts, as in ("assistant",)'
            )
    return AgentSpec(
        name=f"{file}:{name}@{program}" if "@" in reference else f"{file}:{name}",
        target=f"{file}:{name}",
        summary=f"{name} of {file.name}",
        roles=tuple(roles),
        frameworks=tuple(frameworks),
        strict=bool(stated.get("strict", stated["solve"])),
        program=program,
    )


def owner_of(spec: AgentSpec) -> str:
    """Return the name of the environment of a file: its stem and a hash of its place."""
    file, _, _ = _parts(spec.target)
    return f"{file.stem}-{_place(file)}"


def load(spec: AgentSpec, adapters: Iterable[Adapter]) -> Callable[[], Any]:
    """Import a specification's file, with its folder importable as for scripts; return the class.

    Args:
        adapters: Tried in this order on an object without `solve`.

    Raises:
        PluginError: The name is no class with `solve`, and no installed plugin adapts what it is.
        ImportError: The file needs what is not installed.
    """
    file, name, _ = _parts(spec.target)
    agent_class = getattr(_module(file), name)
    if not hasattr(agent_class, "solve"):
        return _adapted(agent_class, spec, adapters)
    if hasattr(agent_class, "roles"):
        return agent_class  # type: ignore[no-any-return]
    # A subclass, since the file's class must not be changed for other agents in the file.
    return type(name, (agent_class,), {"roles": spec.roles})


def sources(target: str) -> list[tuple[str, Path]]:
    """Return the files that decide an agent's behavior, its own and local imports, by name."""
    file, _, _ = _parts(target)
    folder = file.parent
    visited: dict[str, Path] = {}
    unvisited = [file]
    while unvisited:
        source = unvisited.pop()
        relative = str(source.relative_to(folder))
        if relative in visited:
            continue
        visited[relative] = source
        # A package counts whole, whichever of its modules are imported. A module next to a folder
        # of the same name counts too: Python imports that folder only with an `__init__.py`.
        for module in _imports(_syntax(source)):
            package = folder / module
            unvisited += sorted(package.rglob("*.py"))
            if package.with_suffix(".py").is_file():
                unvisited.append(package.with_suffix(".py"))
    return sorted(visited.items())


def named_files(target: str, code: Sequence[tuple[str, Path]]) -> list[tuple[str, Path]]:
    """Return the other files of the agent's folder that its code names, such as a prompt's.

    A file counts if a text in the code is its path relative to the folder. Paths that the code
    computes are not known.

    Args:
        code: The result of `sources`.
    """
    main_file, _, _ = _parts(target)
    folder = main_file.parent
    found: dict[str, Path] = {}
    for _, source in code:
        for node in ast.walk(_syntax(source)):
            if not isinstance(node, ast.Constant) or not isinstance(node.value, str):
                continue
            if named := _file_in(folder, node.value):
                found[str(named.relative_to(folder))] = named
    for name, _ in code:
        found.pop(name, None)
    return sorted(found.items())


def _file_in(folder: Path, text: str) -> Path | None:
    """Return the file of a folder that a text names; None if there is none."""
    if not text or len(text) > _LONGEST_PATH:
        return None
    relative = Path(text)
    if relative.is_absolute() or ".." in relative.parts:
        return None
    path = folder / relative
    try:
        if not path.is_file() or not path.resolve().is_relative_to(folder.resolve()):
            return None
    except (OSError, ValueError):  # no text for a path
        return None
    return path


def _parts(reference: str) -> tuple[Path, str, str]:
    parts = _REFERENCE.fullmatch(reference)
    if parts is None:
        raise PluginError(f"agent {reference!r} is not FILE.py:NAME, as in ./my_agent.py:MyAgent")
    return Path(parts["file"]).expanduser().absolute(), parts["name"], parts["program"] or ""


def _syntax(file: Path) -> ast.Module:
    try:
        return ast.parse(file.read_bytes(), str(file))
    except OSError as error:
        raise PluginError(f"cannot read the agent's file {file}: {error.strerror}") from error
    except (SyntaxError, ValueError, RecursionError) as error:
        raise PluginError(f"the agent's file {file} is not Python: {error}") from error


def _stated(tree: ast.Module, name: str, reference: str) -> dict[str, Any]:
    """Return literal attributes of a class and its bases in the file, and whether it has `solve`."""
    definitions = _definitions(tree)
    if name not in definitions:
        classes = []
        for defined, node in definitions.items():
            if isinstance(node, ast.ClassDef):
                classes.append(defined)
        there = ", ".join(classes) or "none"
        raise PluginError(
            f"agent {reference!r}: the file defines no {name!r}. Classes there: {there}"
        )
    stated: dict[str, Any] = {"solve": False}
    unvisited, seen = [name], set[str]()
    while unvisited:
        class_name = unvisited.pop(0)
        definition = definitions.get(class_name)
        if class_name in seen or not isinstance(definition, ast.ClassDef):
            continue
        seen.add(class_name)
        # Bases come later, so that a class overrides what they state.
        for attribute, value in _literals(definition).items():
            stated.setdefault(attribute, value)
        for inner in definition.body:
            if isinstance(inner, ast.AsyncFunctionDef) and inner.name == "solve":
                stated["solve"] = True
        unvisited += [base.id for base in definition.bases if isinstance(base, ast.Name)]
    return stated


@cache
def _module(file: Path) -> ModuleType:
    """Import an agent's file, with its folder importable as for scripts, and return the module."""
    name = f"harness_file_{file.stem}_{_place(file)}"
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    if str(file.parent) not in sys.path:
        sys.path.insert(0, str(file.parent))
    sys.modules[name] = module  # dataclasses and pickles look their module up
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _definitions(tree: ast.Module) -> Mapping[str, _Class]:
    definitions: dict[str, _Class] = {}
    for node in tree.body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            definitions[node.name] = node
        elif isinstance(node, ast.Assign):
            # Another library's agent may be an object that a function makes.
            for target in node.targets:
                if isinstance(target, ast.Name):
                    definitions[target.id] = node
    return definitions


def _literals(node: ast.ClassDef) -> dict[str, Any]:
    literals: dict[str, Any] = {}
    for inner in node.body:
        if isinstance(inner, ast.Assign):
            names, value = inner.targets, inner.value
        elif isinstance(inner, ast.AnnAssign) and inner.value is not None:
            names, value = [inner.target], inner.value
        else:
            continue
        for target in names:
            if not isinstance(target, ast.Name) or target.id not in _STATED:
                continue
            # What is computed is left out: the program's roles hold, and a contract compares them.
            with suppress(ValueError):
                literals[target.id] = ast.literal_eval(value)
    return literals


def _imports(tree: ast.Module) -> set[str]:
    """Return the top names of all modules that a file imports, those inside functions too."""
    modules: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                modules.add(alias.name.partition(".")[0])
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            modules.add(node.module.partition(".")[0])
    return modules


def _frameworks(file: Path, tree: ast.Module) -> tuple[str, ...]:
    """Return the distributions that a file imports, harness and its plugins left out."""
    installed = _distributions()
    ours = ("agent-rl-harness", "harness-")
    names: set[str] = set()
    for module in _imports(tree):
        # A file next to the agent's hides an installed module of the same name.
        local = (file.parent / f"{module}.py").exists()
        if module in installed and module not in sys.stdlib_module_names and not local:
            distribution = installed[module][0]
            # Harness is below every agent, so it is no framework.
            if not distribution.startswith(ours):
                names.add(distribution)
    return tuple(sorted(names))


@cache
def _distributions() -> Mapping[str, list[str]]:
    return packages_distributions()


def _place(file: Path) -> str:
    import hashlib  # takes milliseconds, and most processes have no agent in a file

    return hashlib.sha256(str(file).encode()).hexdigest()[:8]


def _adapted(foreign: object, spec: AgentSpec, adapters: Iterable[Adapter]) -> Callable[[], Any]:
    for adapter in adapters:
        adapted = adapter(foreign, spec)
        if adapted is not None:
            return adapted
    raise PluginError(
        f"agent {agent_label(spec.name)!r} has no `async def solve(self, problem, toolbox)`, "
        "and no installed plugin "
        f"runs a {type(foreign).__name__} without one. Write it, or install the plugin "
        "(harness-agent-lightning for a LitAgent)"
    )

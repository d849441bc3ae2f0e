"""`harness plugins`: list, scaffold and isolate plugins."""

from __future__ import annotations

import importlib.util
import shlex
import shutil
import sys
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import Annotated, Any

import typer
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import harness
from harness.cli import complete
from harness.cli.common import emit_json, progress_console, results
from harness.errors import (
    ConfigError,
    PluginError,
    how_to_install,
    installed_from,
    with_overrides,
)
from harness.plugins import distribution_of, registry

app = typer.Typer(add_completion=False, invoke_without_command=True)


@app.callback()
def plugins(context: typer.Context, json_: complete.Json = False) -> None:
    """List plugins with their parts, versions and state, broken ones with their problem."""
    if context.invoked_subcommand is not None:
        return

    rows = list_plugins()
    if json_:
        emit_json(rows)
        return
    if not rows:
        progress_console().print(
            f"none installed. To install what comes with harness: {how_to_install('plugins')}"
        )
        return
    console = results()
    width = max(len(row["name"]) for row in rows)
    for row in rows:
        own = ", own environment" if row["own_environment"] else ""
        lines = [f"{row['name']:{width}}  {row['version']:8} {row['state']}{own}"]
        # Some plugins have no parts, and not every agent has a framework.
        if row["offers"]:
            lines.append(", ".join(row["offers"]))
        if row["frameworks"]:
            versions = [f"{name} {version}" for name, version in row["frameworks"].items()]
            lines.append(", ".join(versions))
        console.print(f"\n{' ' * width}  ".join(lines))


@app.command()
def new(
    name: Annotated[
        str, typer.Argument(help="Name of the plugin and its part, for example my_framework_sql.")
    ],
    kind: Annotated[
        str,
        typer.Option(
            "--kind",
            help="agent, task, reward or environment.",
            autocompletion=complete.one_of("agent", "task", "reward", "environment"),
        ),
    ] = "agent",
    folder: Annotated[
        Path, typer.Option("--dir", help="Where the package's folder is made.")
    ] = Path("."),
    one_file: Annotated[
        bool,
        typer.Option("--one-file", help="An agent in one Python file, without a package."),
    ] = False,
) -> None:
    """Write a package that passes the contract suite; replace its example code with your own."""
    from harness.cli.scaffold import USE, write_package

    if one_file:
        _new_file(name, folder, kind)
        return
    target = write_package(name, folder, kind)
    use = USE[kind].replace("@NAME@", name)
    python, tests = shlex.quote(sys.executable), shlex.quote(str(target))
    also = "" if importlib.util.find_spec("pytest") else " pytest"
    installing = f"{with_overrides()} -e {shlex.quote(str(target.resolve()))}{also}"
    use = use.replace("harness", _called(), 1)
    results().print(
        f"{target}\n  {installing}\n  {python} -m pytest {tests}\n  {use}", soft_wrap=True
    )


def _new_file(name: str, folder: Path, kind: str) -> None:
    """Write an agent in one file and print the commands that use it.

    Raises:
        ConfigError: The kind is not `agent`, the name does not fit, or the file exists.
    """
    from harness.cli.scaffold import USE_FILE, class_of, write_file

    if kind != "agent":
        raise ConfigError(
            f"--one-file writes an agent, not --kind {kind}: leave out one of the two"
        )
    target = write_file(name, folder)
    lines = [str(target)]
    for use in USE_FILE:
        command = use.replace("harness", _called(), 1)
        command = command.replace("@FILE@", shlex.quote(str(target)))
        lines.append(command.replace("@CLASS@", class_of(name)))
    results().print("\n  ".join(lines), soft_wrap=True)


def _called() -> str:
    """Return the command that runs this environment's harness from the user's shell."""
    installed = Path(sys.executable).with_name("harness")
    if shutil.which("harness") == str(installed):
        return "harness"
    return f"{shlex.quote(sys.executable)} -m harness"


@app.command()
def sync(
    name: Annotated[
        str,
        typer.Argument(help="The plugin, or one of its agents.", autocompletion=complete.plugins),
    ],
    remove: Annotated[
        bool, typer.Option("--remove", help="Remove the plugin's environment.")
    ] = False,
    with_: Annotated[
        list[str] | None, typer.Option("--with", help="A further requirement; repeatable.")
    ] = None,
) -> None:
    """Create a separate Python environment for a plugin, which its runners use from then on."""
    from harness.rollout import environments

    plugin, package = _plugin(name)
    if remove:
        existed = environments.drop(plugin)
        outcome = "runs in the shared environment again" if existed else "had no own environment"
        results().print(f"{plugin}: {outcome}")
        return
    packages = sources(package)
    # Runners in that environment need the queue, too.
    for spec in registry().specs("queue"):
        for needed in sources(distribution_of("queue", spec.name)):
            if needed not in packages:
                packages.append(needed)
    requirements = [*map(_source_of, packages), *(with_ or [])]
    progress_console().print(f"{plugin}: building from {', '.join(requirements)}")
    results().print(f"{plugin}: {environments.sync(plugin, requirements)}")


def list_plugins() -> list[dict[str, Any]]:
    """Return the name, version, state and offers of every plugin; no framework is imported."""
    from harness.contracts.hookspecs import AgentSpec
    from harness.plugins import KINDS, framework_versions
    from harness.rollout.environments import python_for

    installed = registry()
    rows: list[dict[str, object]] = []
    for state in installed.states:
        offers: list[str] = []
        frameworks: dict[str, str] = {}
        for kind in KINDS:
            for spec in installed.specs(kind):
                if installed.owner(kind, spec.name) != state.name:
                    continue
                idiomatic = isinstance(spec, AgentSpec) and not spec.strict
                offers.append(f"{'idiomatic ' if idiomatic else ''}{kind} {spec.name}")
                if isinstance(spec, AgentSpec):
                    frameworks |= framework_versions(spec)
        own = python_for(state.name) != sys.executable
        problem = state.problem or None
        # Versions are those of this environment; a plugin's own may have others.
        if not own and not problem:
            missing = [name for name, version in frameworks.items() if version == "missing"]
            if missing:
                problem = f"needs {', '.join(missing)}: pip install {' '.join(missing)}"
        rows.append(
            {
                "name": state.name,
                "distribution": state.distribution,
                "version": state.version,
                "state": problem or "ok",
                "usable": problem is None,
                "offers": offers,
                "frameworks": frameworks,
                "own_environment": own,
            }
        )
    return sorted(rows, key=lambda row: row["name"])


def _plugin(name: str) -> tuple[str, str]:
    """Return name and distribution of a plugin, given its own name or an agent's."""
    from harness.plugins import agent_spec

    states = {state.name: state.distribution for state in registry().states}
    if name in states:
        return name, states[name]
    spec = agent_spec(name)
    owner = registry().owner("agent", spec.name)
    if owner in states:
        return owner, states[owner]
    # An agent in a file has no distribution; it needs the plugin of its program.
    return owner, states[registry().owner("program", spec.program)]


def sources(package: str) -> list[str]:
    """Return the distributions of a plugin's environment: harness, required plugins, its own."""
    plugins = {canonicalize_name(state.distribution) for state in registry().states}
    ours = plugins | {harness.DISTRIBUTION}
    distributions: list[str] = []

    def add(name: str) -> None:
        for text in requires(name) or []:
            if "extra ==" in text:
                continue
            needed = canonicalize_name(Requirement(text).name)
            if needed in ours and needed not in distributions and needed != name:
                add(needed)
        # After its requirements: packages are installed in this order.
        distributions.append(name)

    with suppress(PackageNotFoundError):
        add(package)
    return distributions or [harness.DISTRIBUTION, package]


def _source_of(package: str) -> str:
    """Return a distribution's source: its folder or file if it exists, else `name==version`."""
    try:
        return str(installed_from(package) or f"{package}=={version(package)}")
    except PackageNotFoundError as error:
        raise PluginError(
            f"distribution {package!r} is not installed. "
            f"Install its folder or wheel: {with_overrides()} PATH"
        ) from error

"""The `harness` command. Each command is a module of its own, imported when it is called."""

from __future__ import annotations

import errno
import importlib
import io
import locale
import logging
import os
import re
import resource
import sys
from functools import cache
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

import harness
from harness.cli.common import complain
from harness.cli.complete import right_form
from harness.errors import EnvironmentProblem, RunFailed, UserError, how_to_install, nearest
from harness.util.formatting import printable

COMMANDS: dict[str, tuple[str, str]] = {
    "train": ("harness.cli.train", "Train an agent with GRPO."),
    "eval": ("harness.cli.evaluate", "Measure accuracy of a run's checkpoint or of any endpoint."),
    "dev": ("harness.cli.dev", "Dry run on a few tasks, every span shown."),
    "serve": ("harness.cli.serve", "Serve a policy or a run's checkpoint to any OpenAI client."),
    "parity": ("harness.cli.parity", "Prove that plugins run the same agent."),
    "match": ("harness.cli.match", "Show which calls an agent_match would train."),
    "plugins": ("harness.cli.plugins", "List, scaffold and isolate plugins."),
    "tasks": ("harness.cli.tasks", "List task sets and describe one."),
    "config": ("harness.cli.config", "Show presets and resolved configurations."),
    "runs": ("harness.cli.runs", "List, show and diff runs."),
    "compare": ("harness.cli.compare", "Compare runs, with confidence intervals."),
    "doctor": ("harness.cli.doctor", "Check this machine."),
}
"""Command by name: module and summary. A module has `app` (a Typer application)."""

OF_PLUGINS = {
    **dict.fromkeys(("report", "power", "study"), "analysis"),
    **dict.fromkeys(("run", "data", "reward", "score"), "sql"),
    **dict.fromkeys(("watch", "policy", "export", "store", "runner"), "cpu"),
}
"""Commands that pages and messages name, by the extra that brings them."""

ADDRESSES = 3 * 2**29
"""Bytes of addresses (`ulimit -v`) that polars and pyarrow need; with less they abort or hang."""
LIGHT = (("config",), ("plugins",), ("runs", "list"))
"""Commands, by how they begin, that import neither."""
_UNDECODED = re.compile("[\udc80-\udcff]")
"""Bytes that are no character in the locale's encoding."""

_UsageError: type[Any] = typer.BadParameter.__bases__[0]
"""Typer's own; the module that it lives in is private and has moved between releases."""


@cache
def summaries() -> dict[str, str]:
    """Return the summaries of all commands, those of plugins last.

    A plugin that cannot be imported has none; `harness plugins` shows the reason.
    """
    from harness.plugins import registry

    by_name = {name: summary for name, (_, summary) in COMMANDS.items()}
    for spec in registry().specs("command"):
        if " " not in spec.name:
            by_name.setdefault(spec.name, spec.summary)
    return by_name


def application(name: str) -> Any:
    """Return the Typer application of a command, imported now.

    Raises:
        PluginError: It is a plugin's, and does not import.
    """
    if name in COMMANDS:
        return importlib.import_module(COMMANDS[name][0]).app

    from harness.contracts.hookspecs import CommandSpec
    from harness.plugins import load, registry

    return load(registry().spec("command", name, CommandSpec))


class _LazyGroup(TyperGroup):
    """Imports a command's module only when that command is called, so that help is instant."""

    def list_commands(self, context: object) -> list[str]:
        return list(summaries())

    def get_command(self, context: object, name: str) -> Any:
        """Return no more of a command than its place in the list.

        For harness's own commands no plugin is imported.
        """
        if name not in COMMANDS and name not in summaries():
            return None
        summary = COMMANDS[name][1] if name in COMMANDS else summaries()[name]
        return TyperCommand(name, short_help=summary, help=summary)

    def resolve_command(self, context: Any, args: list[str]) -> Any:
        """The command that is called, whole."""
        try:
            name, named, rest = super().resolve_command(context, args)
        except (
            _UsageError
        ) as error:  # Typer looks for what is like it among commands that are imported
            brought = OF_PLUGINS.get(args[0])
            advice = (
                f". Install it: {how_to_install(brought)}"
                if brought
                else nearest(args[0], summaries(), ".")
            )
            error.message = f"No such command {args[0]!r}{advice}"
            raise
        if named is None:
            return name, named, rest
        if not context.resilient_parsing:  # which a shell's completion is
            _check_memory(str(named.name), *rest[:1])
        command = typer.main.get_command(application(str(named.name)))
        command.name = named.name
        # The option's other name, agentlightning's: help of 80 columns has no room for both.
        rest = [re.sub(r"^--external-store-address(?==|$)", "--store", word) for word in rest]
        return name, command, rest

    def invoke(self, context: Any) -> Any:
        """Run the command; Ctrl-C ends in one line with the command's message (Typer has none)."""
        _check_process()
        try:
            return super().invoke(context)
        except KeyboardInterrupt as error:
            message = f": {error}" if str(error) else ""
            complain(f"harness: interrupted{message}")
            raise typer.Exit(130) from error


def _check_memory(*words: str) -> None:
    """Refuse what libraries, imported later, would answer with a crash or without end.

    Raises:
        EnvironmentProblem: The limit on memory is too small for a command that imports them.
    """
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    heavy = True
    for light in LIGHT:
        # A longer list of words may begin with a light command.
        if words[: len(light)] == light:
            heavy = False
    if heavy and limit != resource.RLIM_INFINITY and limit < ADDRESSES:
        raise EnvironmentProblem(
            f"this process may use {limit / 2**20:.0f} MiB of addresses "
            "(ulimit -v) and its libraries need "
            f"{ADDRESSES / 2**20:.0f} MiB: ulimit -v unlimited"
        )


def _check_process() -> None:
    """Refuse what every command would stumble over.

    Raises:
        EnvironmentProblem: There is no current folder, or the locale cannot tell a name.
    """
    try:
        here = os.getcwd()
    except FileNotFoundError as error:
        raise EnvironmentProblem(
            "the current folder is not there any more: change into another"
        ) from error
    for given in (*sys.argv[1:], here):
        if sys.getfilesystemencoding() != "utf-8" and _UNDECODED.search(given):
            raise EnvironmentProblem(
                f"{given} has characters that the locale's encoding "
                f"({locale.getpreferredencoding(False)}) does not "
                "have: set LC_ALL=C.UTF-8, or PYTHONUTF8=1"
            )


class _PlainFormatter(logging.Formatter):
    """Text of others in a log shows harmlessly, as everything that a command prints."""

    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record))


app = typer.Typer(
    cls=_LazyGroup,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Trains the same SQL agent in several frameworks, with identical VERL GRPO runs, and compares them.",
)


@app.callback()
def _root(
    verbose: bool = typer.Option(False, "--verbose", "-v", help="Show the log on stderr."),
    version: bool = typer.Option(False, "--version", help="Show the version."),
) -> None:
    handler = logging.StreamHandler()
    handler.setFormatter(_PlainFormatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=logging.INFO if verbose else logging.ERROR, handlers=[handler])


def main() -> None:
    """Run the program and return its exit status.

    0: done; 1: the work failed; 2: the request was invalid; 130: interrupted.
    """
    if sys.argv[1:] == ["--version"]:
        sys.stdout.write(f"harness {harness.__version__}\n")
        return
    # An answer may have what the terminal's encoding lacks.
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        status: object = app(prog_name="harness", standalone_mode=False)
    except UserError as error:
        complain(f"harness: {error}")
        sys.exit(2)
    except RunFailed as error:
        complain(f"harness: {error}")
        sys.exit(1)
    except _UsageError as error:
        _correct(
            error.format_message(), f" Try: {error.ctx.command_path} --help" if error.ctx else ""
        )
        sys.exit(2)
    except typer.Exit as error:
        sys.exit(error.exit_code)
    except (KeyboardInterrupt, typer.Abort):
        complain("harness: interrupted")
        sys.exit(130)
    except BrokenPipeError:
        sys.exit(0)
    except MemoryError:
        complain(
            "harness: memory is used up: make some free, "
            "or raise the limit (ulimit -v, or the container's)"
        )
        sys.exit(2)
    except (OSError, RuntimeError) as error:
        sys.exit(_lack(error))
    sys.exit(status if isinstance(status, int) else 0)


def _correct(said: str, hint: str) -> None:
    """Say what is wrong with the command, and what was probably meant."""
    if not said:  # a group without a command has shown its help
        return
    if meant := right_form(sys.argv[1:]):
        said, hint = said.partition(" Did you mean")[0], f" Did you mean `{meant}`?"
    complain(f"harness: {said}{'' if said.endswith(('.', '?')) else '.'}{hint}")


def _lack(error: Exception) -> int:
    """Say what the machine lacks, and give the status to end with; raise what has another cause."""
    from harness.rollout.processes import starved

    if advice := starved(f"{type(error).__name__}: {error}"):
        complain(f"harness: {advice}")
        return 2
    if not isinstance(error, OSError) or error.errno not in (errno.ENOSPC, errno.EDQUOT):
        raise error
    complain(f"harness: {error.strerror}: {error.filename or 'make room'}")
    return 1

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
    "dev": ("harness.cli.dev", "Run a few tasks and show every span."),
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
"""The extra that installs each plugin command that documentation and messages mention."""

ADDRESSES = 3 * 2**29
"""Bytes of address space (`ulimit -v`) that polars and pyarrow need; with less they abort or
hang."""
LIGHT = (("config",), ("plugins",), ("runs", "list"))
"""First words of the commands that import neither of them."""
_UNDECODED = re.compile("[\udc80-\udcff]")
"""Bytes that the locale's encoding could not decode, as Python represents them."""

_UsageError: type[Any] = typer.BadParameter.__bases__[0]
"""Typer's usage error, found through a subclass: its own module is private and has moved."""


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
        PluginError: The command is a plugin's and cannot be imported.
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
        """Return a placeholder with the command's summary, enough for the list of commands.

        For harness's own commands no plugin is imported.
        """
        if name not in COMMANDS and name not in summaries():
            return None
        summary = COMMANDS[name][1] if name in COMMANDS else summaries()[name]
        return TyperCommand(name, short_help=summary, help=summary)

    def resolve_command(self, context: Any, args: list[str]) -> Any:
        """Import the called command, and return it instead of its placeholder."""
        try:
            name, placeholder, rest = super().resolve_command(context, args)
        except _UsageError as error:
            # Typer suggests names of imported commands only.
            extra = OF_PLUGINS.get(args[0])
            if extra:
                advice = f". Install it: {how_to_install(extra)}"
            else:
                advice = nearest(args[0], summaries(), ".")
            error.message = f"No such command {args[0]!r}{advice}"
            raise
        if placeholder is None:
            return name, placeholder, rest
        if not context.resilient_parsing:  # a shell's completion must not fail
            _check_memory(str(placeholder.name), *rest[:1])
        command = typer.main.get_command(application(str(placeholder.name)))
        command.name = placeholder.name
        # Agentlightning's name of the option. Declared there, it would not fit into 80 columns.
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
    """Refuse a memory limit at which polars and pyarrow would abort or hang.

    Raises:
        EnvironmentProblem: The limit on memory is too small for a command that imports them.
    """
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    heavy = True
    for light in LIGHT:
        # Further arguments may follow the words of a light command.
        if words[: len(light)] == light:
            heavy = False
    if heavy and limit != resource.RLIM_INFINITY and limit < ADDRESSES:
        raise EnvironmentProblem(
            f"this process may use {limit / 2**20:.0f} MiB of address space (ulimit -v), and its "
            f"libraries need {ADDRESSES / 2**20:.0f} MiB. Raise the limit: ulimit -v unlimited"
        )


def _check_process() -> None:
    """Refuse conditions under which every command would fail.

    Raises:
        EnvironmentProblem: The current folder does not exist, or the locale cannot decode its name
            or an argument.
    """
    try:
        here = os.getcwd()
    except FileNotFoundError as error:
        raise EnvironmentProblem(
            "the current folder no longer exists: change to another one (cd)"
        ) from error
    for given in (*sys.argv[1:], here):
        if sys.getfilesystemencoding() != "utf-8" and _UNDECODED.search(given):
            raise EnvironmentProblem(
                f"{given} has characters that the locale's encoding "
                f"({locale.getpreferredencoding(False)}) does not "
                "have: set LC_ALL=C.UTF-8, or PYTHONUTF8=1"
            )


class _PlainFormatter(logging.Formatter):
    """Escapes control characters in log records, as in everything that a command prints."""

    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record))


app = typer.Typer(
    cls=_LazyGroup,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help=(
        "Train the same SQL agent in several frameworks with identical verl GRPO runs, and compare "
        "them."
    ),
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
    # An answer may have characters that the terminal's encoding lacks.
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
            "harness: out of memory: free some, or raise the limit (ulimit -v, or the container's)"
        )
        sys.exit(2)
    except (OSError, RuntimeError) as error:
        sys.exit(_lack(error))
    sys.exit(status if isinstance(status, int) else 0)


def _correct(message: str, hint: str) -> None:
    """Report a usage error, with the command that was probably meant."""
    if not message:  # a group without a command has printed its help
        return
    if meant := right_form(sys.argv[1:]):
        message, hint = message.partition(" Did you mean")[0], f" Did you mean `{meant}`?"
    complain(f"harness: {message}{'' if message.endswith(('.', '?')) else '.'}{hint}")


def _lack(error: Exception) -> int:
    """Report a lack of resources and return the exit status; raise any other error again."""
    from harness.rollout.processes import starved

    if advice := starved(f"{type(error).__name__}: {error}"):
        complain(f"harness: {advice}")
        return 2
    if not isinstance(error, OSError) or error.errno not in (errno.ENOSPC, errno.EDQUOT):
        raise error
    place = f" ({error.filename})" if error.filename else ""
    complain(f"harness: {error.strerror}{place}: make room")
    return 1

"""Functions that commands share, such as the output of results and progress."""

from __future__ import annotations

import json
import os
import shlex
import signal
import sys
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

from harness.errors import PluginError
from harness.util.formatting import printable, printable_json

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from typer import Typer

    from harness.contracts.hookspecs import Spec

TAKE_ANYTHING = {"allow_extra_args": True, "ignore_unknown_options": True}
"""Settings of a command that only reports why it cannot run."""


def add_commands(app: Typer, group: str) -> list[str]:
    """Add plugins' subcommands to a command and return their names.

    A broken one is listed, and reports its problem when called.
    """
    from harness.plugins import load, registry

    names = []
    for spec in registry().specs("command"):
        parent, _, name = spec.name.rpartition(" ")
        if parent != group:
            continue
        # One broken plugin must not take the other subcommands with it.
        try:
            app.command(name)(load(spec))
        except Exception as error:
            app.command(name, context_settings=TAKE_ANYTHING)(_broken(spec, error))
        names.append(name)
    return names


def _broken(spec: Spec, error: Exception) -> Callable[[], None]:
    """Return a command that raises the error of its import."""
    from harness.plugins import registry

    def command() -> None:
        raise PluginError(
            f"the command {spec.name!r} of {registry().origin(spec)} is broken: {error}"
        ) from error

    command.__doc__ = spec.summary
    return command


@cache
def results() -> Console:
    """Return the console of results, on stdout."""
    from harness.api.console import PlainConsole, terminal_variables

    # A pipe has no width, and rich would assume 80 columns.
    wide = None if sys.stdout.isatty() or "COLUMNS" in terminal_variables() else 160
    return PlainConsole(width=wide)


@cache
def progress_console() -> Console:
    """Return the console of progress and remarks, on stderr."""
    from harness.api.console import PlainConsole

    return PlainConsole(stderr=True)


def table(*heads: str, title: str | None = None, **column: Any) -> Table:
    """Create a table of results with its title on the left.

    `column` holds the parameters of `add_column` for all columns.
    """
    from rich import box
    from rich.table import Table

    made = Table(box=box.SIMPLE_HEAD, title=title, title_justify="left")
    for head in heads:
        made.add_column(head, **column)
    return made


def fitting(
    columns: Iterable[str],
    widths: Mapping[str, int],
    room: int,
    least: Mapping[str, int] | None = None,
    *,
    in_order: bool = False,
) -> tuple[list[str], int]:
    """Return the columns of a table that fit, and the width that they leave.

    Args:
        columns: From the one that is shown first to the one that is left out first.
        widths: Widths of columns, each with its border.
        room: Width for these columns.
        least: Width that must be left after a column is added; 0 for others.
        in_order: Whether a column is left out if one before it does not fit.
    """
    chosen: list[str] = []
    for name in columns:
        needed = widths[name] + (least or {}).get(name, 0)
        if needed <= room:
            room -= widths[name]
            chosen.append(name)
        elif in_order:
            break
    return chosen, room


def one_thread() -> None:
    """Limit polars to one thread: with tables of runs, more cost 25 % more processor time."""
    os.environ.setdefault("POLARS_MAX_THREADS", "1")


def interruptible() -> None:
    """Treat SIGTERM and SIGHUP as Ctrl-C: children end, files stay whole. `nohup` still works."""
    from harness.api.event_loops import interrupt
    from harness.runs.folder import endings

    for number in endings():
        signal.signal(number, interrupt)


def as_called() -> str:
    """Return the command line of this process, for a message that advises to run it again."""
    return shlex.join(["harness", *sys.argv[1:]])


def say(text: str) -> None:
    """Write a line of results to stdout."""
    sys.stdout.write(printable(text) + "\n")


def complain(text: str) -> None:
    """Write an error message to stderr."""
    sys.stderr.write(printable(text) + "\n")


def emit_json(data: object, indent: int | None = 2) -> None:
    """Write one JSON document to stdout."""
    # JSON can escape characters that the locale's encoding lacks.
    ascii_only = not (sys.stdout.encoding or "").lower().startswith("utf")
    text = json.dumps(data, indent=indent, ensure_ascii=ascii_only, default=str)
    # No encoding has lone surrogates, which a model's reply may contain.
    if not text.isascii() and any("\ud800" <= letter <= "\udfff" for letter in text):
        text = json.dumps(data, indent=indent, default=str)
    sys.stdout.write(printable_json(text) + "\n")

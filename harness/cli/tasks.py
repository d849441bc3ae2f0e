"""`harness tasks`."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Annotated

import typer

from harness.cli import complete
from harness.cli.common import emit_json, progress_console, results
from harness.errors import UserError, how_to_install

app = typer.Typer(add_completion=False, invoke_without_command=True)


TaskOptions = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        help="An option of the task set, such as task.options.path=questions.jsonl; repeatable.",
        autocompletion=complete.settings,
    ),
]


@app.callback()
def tasks(
    context: typer.Context,
    name: Annotated[
        str | None,
        typer.Option(
            "--name",
            help="Describe this task set: counts, hashes, licence.",
            autocompletion=complete.task_sets,
        ),
    ] = None,
    set_: TaskOptions = None,
    json_: Annotated[bool, typer.Option("--json", help="Print as JSON.")] = False,
) -> None:
    """List task sets, or describe one."""
    from harness.plugins import registry

    if context.invoked_subcommand is not None:
        return
    if name is not None:
        _describe(name, set_ or [], json_)
        return
    specs = registry().specs("task set")
    if json_:
        rows = []
        for spec in specs:
            plugin = registry().owner("task set", spec.name)
            rows.append({"name": spec.name, "summary": spec.summary, "plugin": plugin})
        emit_json(rows)
        return
    for spec in specs:
        results().print(f"{spec.name:16} {spec.summary}")
    if not specs:
        progress_console().print(
            f"none installed. To install what comes with harness: {how_to_install('plugins')}"
        )


@app.command()
def show(
    name: Annotated[str, typer.Argument(help="A task set.", autocompletion=complete.task_sets)],
    set_: TaskOptions = None,
    json_: Annotated[bool, typer.Option("--json", help="Print as JSON.")] = False,
) -> None:
    """Describe one task set: its options, counts, hashes, licence."""
    _describe(name, set_ or [], json_)


def _describe(name: str, settings: list[str], json_: bool) -> None:
    """Print the description of a task set, or its options if it needs further ones to load."""
    from harness.config import load_config
    from harness.plugins import load, make, task_set_spec

    options = load_config(None, None, settings).task.options
    spec = task_set_spec(name)
    described: dict[str, object]
    try:
        described = dict(make(spec, options, "task.options").describe())
    except UserError as error:
        # Without options, the user may only want to see which exist; a script needs the data.
        if options or json_:
            raise
        described = {
            "name": spec.name,
            "summary": spec.summary,
            "splits": ", ".join(spec.splits),
            "options": _options(load(spec)),
            "counts": f"not known yet: {error}",
        }
    if json_:
        emit_json(described)
        return
    for key, value in described.items():
        results().print(f"{key}: {value}")


def _options(target: Callable[..., object]) -> str:
    """Return the options of a task set with their defaults, as `task.options.NAME` takes them."""
    shown = []
    for parameter in inspect.signature(target).parameters.values():
        has_default = parameter.default is not inspect.Parameter.empty
        shown.append(f"{parameter.name}={parameter.default}" if has_default else parameter.name)
    return ", ".join(shown) or "none"

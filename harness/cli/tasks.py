"""`harness tasks`."""

from __future__ import annotations

from typing import Annotated

import typer

from harness.cli import complete
from harness.cli.common import emit_json, progress_console, results
from harness.errors import how_to_install

app = typer.Typer(add_completion=False, invoke_without_command=True)


@app.callback()
def tasks(
    name: Annotated[
        str | None,
        typer.Option(
            "--name",
            help="Describe this task set: counts, hashes, licence.",
            autocompletion=complete.task_sets,
        ),
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            help="Its options, as task.options.path=questions.jsonl; repeatable.",
            autocompletion=complete.settings,
        ),
    ] = None,
    json_: Annotated[bool, typer.Option("--json", help="Print as JSON.")] = False,
) -> None:
    """List task sets, or describe one."""
    from harness.config import load_config
    from harness.plugins import make, registry, task_set_spec

    if name is not None:
        options = load_config(None, None, set_ or []).task.options
        described = dict(make(task_set_spec(name), options, "task.options").describe())
        if json_:
            emit_json(described)
        else:
            for key, value in described.items():
                results().print(f"{key}: {value}")
        return
    specs = registry().specs("task set")
    if json_:
        emit_json(
            [
                {
                    "name": s.name,
                    "summary": s.summary,
                    "plugin": registry().owner("task set", s.name),
                }
                for s in specs
            ]
        )
        return
    for spec in specs:
        results().print(f"{spec.name:16} {spec.summary}")
    if not specs:
        progress_console().print(
            f"none installed. To install what comes with harness: {how_to_install('plugins')}"
        )

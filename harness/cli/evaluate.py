"""`harness eval`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from harness.cli import complete
from harness.cli.common import emit_json, progress_console, results
from harness.python.asking import without
from harness.wording import spoilt

app = typer.Typer(add_completion=False)


@app.command()
def evaluate(
    run: Annotated[
        Path | None,
        typer.Argument(
            help="A run folder: its newest checkpoint is measured.", autocompletion=complete.runs
        ),
    ] = None,
    agent: Annotated[
        str | None, complete.agent("The agent; by default the run's, or langgraph_sql.")
    ] = None,
    endpoint: Annotated[
        str | None,
        typer.Option(
            help="An OpenAI-compatible URL ending in /v1; OPENAI_BASE_URL if nothing is named."
        ),
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="The endpoint's model name, or a policy to serve here.")
    ] = None,
    api_key_env: complete.KeyVariable = "OPENAI_API_KEY",
    step: Annotated[int | None, typer.Option(help="A checkpoint other than the newest.")] = None,
    task: Annotated[str | None, complete.task("The task set.")] = None,
    split: Annotated[
        str | None,
        typer.Option(help="The split; by default that of validation, or what the task set names."),
    ] = None,
    read_reserved: Annotated[
        bool,
        typer.Option(
            help="Read a split that is reserved for the end; it is written down beside the runs."
        ),
    ] = False,
    limit: Annotated[int | None, typer.Option(help="Only so many tasks, a fixed sample.")] = None,
    samples: Annotated[
        int | None,
        typer.Option(min=1, help="Rollouts of a task, for pass@k and what they agree on."),
    ] = None,
    temperature: Annotated[
        float | None, typer.Option(min=0, help="0, the default, is greedy.")
    ] = None,
    store: complete.Store = None,
    without_parity: complete.WithoutParity = False,
    preset: complete.Preset = None,
    config: Annotated[Path | None, typer.Option(help="A YAML file.")] = None,
    settings: complete.Settings = None,
    runs_dir: Annotated[Path, typer.Option(help="Where the evaluation's folder is made.")] = Path(
        "runs"
    ),
    json_: Annotated[bool, typer.Option("--json", help="Print the record as JSON.")] = False,
) -> None:
    """Measure accuracy: of a run's checkpoint, of a policy served here (--model), or of any endpoint."""
    given = without(locals(), "json_")
    from harness.python.evaluating import Wanted

    asked = Wanted(**given).asked()
    measured = asked.carry_out(progress_console())
    if json_:
        emit_json(measured.record)
    else:
        results().print(measured.summary)
    if spoilt(measured.record["result"] or {}):
        raise typer.Exit(1)
    asked_for, known = asked.config.task.val_limit, asked.known
    if (
        not json_
        and run is not None
        and limit is None
        and asked_for is not None
        and asked_for < known
    ):
        results().print(
            f"{asked_for} of the {known} tasks of {asked.config.task.val_split!r}, as in the training "
            f"(task.val_limit): --limit {known} asks all"
        )

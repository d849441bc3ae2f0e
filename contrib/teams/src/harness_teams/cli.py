"""`harness contribution`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from harness import UserError
from harness.cli import complete
from harness.cli.common import emit_json, progress_console, results

app = typer.Typer(add_completion=False)
_SECTION = re.compile(r"roles\.\w+(\.\w+)?:? ")


@app.command()
def contribution(
    run: Annotated[Path, typer.Argument(help="A training's folder.", autocompletion=complete.runs)],
    role: Annotated[
        list[str] | None,
        typer.Option(
            help="Regular expression for roles that count as one group; repeatable. Each other role is a group."
        ),
    ] = None,
    start: Annotated[
        str | None,
        typer.Option(help="A policy or run to use instead of the training's first policy."),
    ] = None,
    endpoint: Annotated[
        str | None,
        typer.Option(help="Endpoint of that policy; required on a GPU, with --model."),
    ] = None,
    model: Annotated[str | None, typer.Option(help="Name of the policy at the endpoint.")] = None,
    api_key_env: Annotated[str, typer.Option(help="Variable that holds the endpoint's key.")] = "",
    step: Annotated[
        int | None, typer.Option(help="Use this checkpoint instead of the newest.")
    ] = None,
    split: Annotated[
        str | None, typer.Option(help="The split; by default the validation split.")
    ] = None,
    read_reserved: Annotated[bool, typer.Option(help="Consent to read a reserved split.")] = False,
    limit: Annotated[
        int | None, typer.Option(help="At most this many tasks, a fixed sample.")
    ] = None,
    settings: complete.Settings = None,
    runs_dir: Annotated[Path, typer.Option(help="Parent of the folder of the evaluations.")] = Path(
        "runs"
    ),
    json_: complete.Json = False,
) -> None:
    """Measure the worth of training each role: evaluate a checkpoint with each role untrained."""
    if start is not None and endpoint is not None:
        raise UserError("give either --start or --endpoint, not both")
    if (endpoint is None) != (model is None):
        raise UserError(
            "--endpoint and --model must be given together: the policy's address and its name there"
        )
    if not run.is_dir() and (runs_dir / run).is_dir():
        run = runs_dir / run
    from harness.compare.formats import show_table
    from harness.compare.layout import tables
    from harness_teams import contribution as work

    given = (
        {"policy": start}
        if start
        else {"endpoint": endpoint or "", "model": model or "", "api_key_env": api_key_env}
    )
    typed = f"--start {start}" if start else f"--endpoint {endpoint}" if endpoint else ""
    with _as_typed("" if any(one.startswith("roles.") for one in settings or ()) else typed):
        found = work.contribution(
            run,
            progress_console(),
            runs_dir,
            patterns=role or (),
            start=given if start or endpoint else None,
            step=step,
            questions=work.Questions(split, limit, read_reserved, settings or ()),
        )
    if json_:
        emit_json(found.data())
        return
    out = results()
    for table in [
        *(one for one in tables(found.against_trained) if one.key == "accuracy"),
        found.table(),
    ]:
        show_table(out, table)
    out.print(
        f"{found.folder}   (next: harness compare {found.folder}, harness report {found.folder})"
    )


@contextmanager
def _as_typed(option: str) -> Iterator[None]:
    """Name the option in refusals of the `roles.NAME` sections that it creates."""
    try:
        yield
    except UserError as error:
        if not option or not (said := _SECTION.match(str(error))):
            raise
        what = str(error)[said.end() :]
        what = re.sub(
            r"name roles\.\w+\.endpoint and model instead",
            "give --endpoint and --model instead",
            what,
        )
        raise type(error)(f"{option}: {what}") from error

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
            help="Regular expression: the roles that match it are measured together, as one group. "
            "Repeatable. Every other role is measured alone."
        ),
    ] = None,
    start: Annotated[
        str | None,
        typer.Option(
            help="Policy or run that answers for untrained roles; by default the policy with which the "
            "training began."
        ),
    ] = None,
    endpoint: Annotated[
        str | None,
        typer.Option(
            help="Endpoint that answers for untrained roles; required on a GPU, together with --model."
        ),
    ] = None,
    model: Annotated[str | None, typer.Option(help="Name of the model at --endpoint.")] = None,
    api_key_env: Annotated[str, typer.Option(help="Variable that holds the endpoint's key.")] = "",
    step: complete.Measured = None,
    split: Annotated[
        str | None, typer.Option(help="The split to measure; by default the validation split.")
    ] = None,
    read_reserved: complete.ReadReserved = False,
    limit: complete.Limit = None,
    settings: complete.Settings = None,
    runs_dir: Annotated[
        Path, typer.Option(help="The folder in which the evaluations get their own folder.")
    ] = Path("runs"),
    json_: complete.Json = False,
) -> None:
    """Measure what the training of each role is worth.

    Evaluates the trained checkpoint, then again with the untrained policy in some of its roles.
    """
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
        if not option or not (section := _SECTION.match(str(error))):
            raise
        what = str(error)[section.end() :]
        what = re.sub(
            r"name roles\.\w+\.endpoint and model instead",
            "give --endpoint and --model instead",
            what,
        )
        raise type(error)(f"{option}: {what}") from error

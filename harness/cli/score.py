"""`harness score`: the verdict on one prediction."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer()


@app.command()
def score(
    db: Annotated[Path, typer.Option(help="SQLite file, or folder with several of one test suite.")],
    gold: Annotated[str, typer.Option(help="The gold query.")],
    pred: Annotated[str, typer.Option(help="The predicted query.")],
    keep_distinct: Annotated[
        bool, typer.Option("--keep-distinct", help="Keep DISTINCT instead of dropping it from both.")
    ] = False,
    plug_value: Annotated[
        bool,
        typer.Option("--plug-value", help="Also try the prediction with gold's values in place of its own."),
    ] = False,
    timeout_s: Annotated[float, typer.Option(help="Deadline of each single execution, in seconds.", min=0.01)] = 10.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Say whether a query gives the same result as the gold query: 1, 0 or unscored.

    Exit status 0 with a verdict, 1 or 0; 1 where nothing could be scored, for example because gold fails; 2 if
    the database is not there.
    """
    from harness.errors import ConfigError
    from harness.sql.evaluator import VERSION, evaluate

    verdict = evaluate(db, gold, pred, keep_distinct=keep_distinct, plug_value=plug_value, timeout_s=timeout_s)
    value = None if verdict.match is None else float(verdict.match)
    if as_json:
        report = {
            "reward": value,
            "match": verdict.match,
            "reason": verdict.reason,
            "flags": list(verdict.flags),
            "version": VERSION,
        }
        typer.echo(json.dumps(report))
    if not db.exists():
        raise ConfigError(f"no database at {db}. Give a SQLite file with --db")
    if not as_json:
        flags = f" [{', '.join(verdict.flags)}]" if verdict.flags else ""
        typer.echo(f"{'unscored' if value is None else f'{value:g}'}: {verdict.reason}{flags}")
    if value is None:
        raise typer.Exit(1)

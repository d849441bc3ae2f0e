"""`harness reward`: how the reward stands up to attacks."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

app = typer.Typer(no_args_is_help=True, help="Examine rewards.")


@app.callback()
def _group() -> None:
    """Examine rewards."""


@app.command()
def audit(as_json: Annotated[bool, typer.Option("--json", help="Print a JSON list.")] = False) -> None:
    """Replay attacks on execution accuracy and show what they score here and in the reference evaluator.

    Exit status 1 if an attack scores, is not the verdict that the documentation gives, or changes a file.
    """
    from dataclasses import asdict

    from harness.rewards.audit import audit

    rows = audit()
    failed = [row for row in rows if not row.holds]
    if as_json:
        typer.echo(json.dumps([{**asdict(row), "holds": row.holds} for row in rows]))
    else:
        _print_table(rows, failed)
    if failed:
        raise typer.Exit(1)


def _print_table(rows: list[Any], failed: list[Any]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table("attack", "here", "reference", "flags", "time", box=box.SIMPLE)
    for row in rows:
        here = "unscored" if row.value is None else f"{row.value:g}"
        mark = "" if row.holds else "  BROKEN"
        table.add_row(row.attack, here + mark, row.reference, ", ".join(row.flags), f"{row.elapsed_s:.2f} s")
    console = Console()
    if not console.is_terminal:
        console = Console(width=160)
    console.print(table)
    console.print(f"{len(rows) - len(failed)} of {len(rows)} as documented; no file changed by them.")

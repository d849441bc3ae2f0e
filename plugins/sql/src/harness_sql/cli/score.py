"""`harness score`: return the verdict on one prediction, or on each line of a file."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from harness.cli.common import complain, say
from harness.errors import ConfigError

if TYPE_CHECKING:
    from harness_sql.sqlite.evaluator import Match

app = typer.Typer(add_completion=False)


@app.command()
def score(
    db: Annotated[
        Path | None, typer.Option(help="SQLite file, or folder with several of one test suite.")
    ] = None,
    gold: Annotated[str | None, typer.Option(help="The gold query.")] = None,
    pred: Annotated[str | None, typer.Option(help="The predicted query.")] = None,
    file: Annotated[
        Path | None,
        typer.Option(
            help="JSON lines instead, each an object with db, gold and pred; one verdict per line."
        ),
    ] = None,
    keep_distinct: Annotated[
        bool,
        typer.Option("--keep-distinct", help="Keep DISTINCT instead of dropping it from both."),
    ] = False,
    plug_value: Annotated[
        bool,
        typer.Option(
            "--plug-value", help="Also try the prediction with its values replaced by gold's."
        ),
    ] = False,
    timeout_s: Annotated[
        float, typer.Option(help="Deadline of one verdict, in seconds.", min=0.01)
    ] = 10.0,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object per verdict.")
    ] = False,
) -> None:
    """Check whether a query gives the same result as the gold query: 1, 0 or unscored.

    Exit status: 0 with a verdict of 1 or 0; 1 if the pair is unscored, for example because the gold query fails; 2 if
    the database does not exist. With --file: 0 if every line has a verdict; 1 if some are unscored; 2 if some lines are
    no pair (stderr names them, the others are scored) or the file cannot be read.
    """
    from harness_sql.sqlite.evaluator import evaluate

    judge = partial(
        evaluate, keep_distinct=keep_distinct, plug_value=plug_value, timeout_s=timeout_s
    )
    if file is not None:
        if (db, gold, pred) != (None, None, None):
            raise ConfigError(
                "--file names database and queries line by line. Leave out --db, --gold and --pred"
            )
        raise typer.Exit(_score_lines(file, judge, as_json))
    if db is None or gold is None or pred is None:
        raise ConfigError(
            "nothing to score. Give --db, --gold and --pred, or --file with one pair a line"
        )
    verdict = judge(db, gold, pred)
    if as_json or db.exists():
        say(_shown(verdict, as_json))
    if not db.exists():
        raise ConfigError(f"no database at {db}. Give a SQLite file with --db")
    if verdict.match is None:
        raise typer.Exit(1)


def _score_lines(file: Path, judge: Callable[[str, str, str], Match], as_json: bool) -> int:
    """Print a verdict for each pair and return the exit status."""
    status = 0
    try:
        with file.open("rb") as lines:
            for number, line in enumerate(lines, start=1):
                if not line.strip():
                    continue
                try:
                    pair = json.loads(line)
                    db, gold, pred = (pair[name] for name in ("db", "gold", "pred"))
                    if not all(isinstance(value, str) for value in (db, gold, pred)):
                        raise TypeError
                except (ValueError, KeyError, TypeError, RecursionError):
                    complain(
                        f"{file}, line {number}: not a JSON object with the texts db, gold and pred"
                    )
                    status = 2
                    continue
                verdict = judge(db, gold, pred)
                if verdict.match is None:
                    status = max(status, 1)
                say(_shown(verdict, as_json, number))
    except OSError as error:
        raise ConfigError(
            f"cannot read {file}: {error.strerror}. Give a file of JSON lines with --file"
        ) from error
    return status


def _shown(verdict: Match, as_json: bool, line: int | None = None) -> str:
    from harness_sql.sqlite.evaluator import VERSION

    value = None if verdict.match is None else float(verdict.match)
    if as_json:
        report: dict[str, object] = {} if line is None else {"line": line}
        report |= {
            "reward": value,
            "match": verdict.match,
            "reason": verdict.reason,
            "flags": list(verdict.flags),
            "version": VERSION,
        }
        return json.dumps(report)
    flags = f" [{', '.join(verdict.flags)}]" if verdict.flags else ""
    where = "" if line is None else f"{line}: "
    return " ".join(
        f"{where}{'unscored' if value is None else f'{value:g}'}: {verdict.reason}{flags}".split()
    )

"""`harness data`: prepare, list, verify and fetch the data of task sets."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from harness.tasks.spider.prepare import Progress, Report

app = typer.Typer(no_args_is_help=True, help="Prepare, list, verify and fetch the data of task sets.")

OutOption = Annotated[
    Path | None,
    typer.Option(
        "--out", help="Prepared folder; default $VERL_SPIDER_DATA_DIR, or harness/spider in the cache folder."
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


@app.command()
def spider(
    source: Annotated[Path, typer.Argument(help="The Spider archive (.zip) or the folder it unpacks to.")],
    out: OutOption = None,
    as_json: JsonOption = False,
) -> None:
    """Check Spider's files and gold queries and write the Parquet files that training reads."""
    from harness.tasks.spider.layout import default_folder
    from harness.tasks.spider.prepare import prepare

    with _progress() as progress:
        report = prepare(source, out or default_folder(), progress)
    _print_report(report, as_json)


@app.command()
def fetch(
    name: Annotated[str, typer.Argument(help="Task set; only spider can be fetched.")],
    out: OutOption = None,
    url: Annotated[str | None, typer.Option(help="Where to get the archive instead.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Download the archive of a task set (again to resume), check it and prepare it."""
    from harness.errors import TaskSetError
    from harness.tasks.spider.fetch import BUNDLE_URL, fetch
    from harness.tasks.spider.layout import default_folder
    from harness.tasks.spider.prepare import prepare

    if name != "spider":
        raise TaskSetError(f"task set {name!r} cannot be fetched. Only spider can; pocket is bundled")
    target = out or default_folder()
    archive = target.with_name(f"{target.name}-download.zip")
    with _progress() as progress:
        if not archive.is_file():
            fetch(archive, url or BUNDLE_URL, progress)
        report = prepare(archive, target, progress)
    archive.unlink()
    _print_report(report, as_json)


@app.command("list")
def list_(as_json: JsonOption = False) -> None:
    """Show which data is there."""
    from harness.errors import TaskSetError
    from harness.tasks.spider.layout import default_folder
    from harness.tasks.spider.verify import check_prepared, read_manifest

    folder = default_folder()
    row: dict[str, Any] = {"name": "spider", "folder": str(folder), "state": "prepared", "detail": ""}
    try:
        check_prepared(folder)
        manifest = read_manifest(folder)
        parts = (manifest or {}).get("parts", {})
        row["detail"] = ", ".join(f"{name} {part['runnable']}" for name, part in parts.items())
        row["state"] = "prepared" if manifest else "prepared by something else (no manifest)"
    except TaskSetError as error:
        row["state"], row["detail"] = "not prepared", str(error)
    rows = [{"name": "pocket", "folder": "", "state": "bundled", "detail": ""}, row]
    if as_json:
        typer.echo(json.dumps(rows))
        return
    for entry in rows:
        typer.echo("  ".join(str(entry[key]) for key in ("name", "state", "folder", "detail") if entry[key]))


@app.command()
def verify(
    name: Annotated[str, typer.Argument(help="Task set.")] = "spider",
    folder: Annotated[Path | None, typer.Option("--dir", help="The prepared folder.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Compare the files of a prepared task set with its manifest; exit status 1 if any differs."""
    from harness.errors import TaskSetError
    from harness.tasks.spider.layout import default_folder
    from harness.tasks.spider.verify import verify

    if name != "spider":
        raise TaskSetError(
            f"task set {name!r} has no data to verify. Only spider has; pocket checks itself when loaded"
        )
    result = verify(folder or default_folder())
    if as_json:
        typer.echo(json.dumps(result))
    else:
        for problem in result["problems"]:
            typer.echo(problem)
        checked = f"{result['files']} files checked" if result["manifest"] else "no manifest to check against"
        typer.echo(f"{result['folder']}: {'ok' if result['ok'] else 'NOT ok'} ({checked})")
    if not result["ok"]:
        raise typer.Exit(1)


def _print_report(report: Report, as_json: bool) -> None:
    from dataclasses import asdict

    if as_json:
        typer.echo(json.dumps(asdict(report)))
        return
    typer.echo(f"{report.folder}: {report.databases} databases")
    for name, part in report.parts.items():
        typer.echo(
            f"  {name}: {part.questions:,} questions, {part.runnable:,} with their database, "
            f"{part.gold_empty:,} with an empty gold result, {len(part.gold_failed)} whose gold query fails"
        )
    if report.missing:
        lost = {db_id: sum(part.skipped.get(db_id, 0) for part in report.parts.values()) for db_id in report.missing}
        typer.echo("missing databases: " + ", ".join(f"{db_id} ({count} questions)" for db_id, count in lost.items()))
    for file, reason in report.damaged.items():
        typer.echo(f"damaged database: {file}: {reason}")
    for name, part in report.parts.items():
        for failure in part.gold_failed:
            typer.echo(f"gold fails: {name} row {failure['row']} ({failure['db_id']}): {failure['error']}")


@contextmanager
def _progress() -> Iterator[Progress]:
    """A progress bar on stderr, one line per kind of work."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        tasks: dict[str, Any] = {}

        def update(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = bar.add_task(what, total=total)
            bar.update(tasks[what], completed=done, total=total)

        yield update

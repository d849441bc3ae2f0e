"""`harness data`: prepare, check, list, verify and fetch the data of task sets."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from harness.cli import complete
from harness.cli.common import add_commands, emit_json, say
from harness.errors import TaskSetError
from harness_sql.cli.places import SHOWN, places
from harness_sql.cli.prepared import layouts, prepared, state
from harness_sql.cli.progress import progress_bar

if TYPE_CHECKING:
    from harness_sql.tasks.files import FilesTasks, checking
    from harness_sql.tasks.prepared.prepare import Report

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    help="Prepare, check, list, verify and fetch the data of task sets.",
)

OutOption = Annotated[
    Path | None,
    typer.Option(
        "--out",
        help="Prepared folder; default harness/TASK_SET in the cache folder, "
        "or the folder in $VERL_SPIDER_DATA_DIR "
        "(spider) or $HARNESS_BIRD_DATA_DIR (bird).",
    ),
]
DatabasesOption = Annotated[
    Path | None,
    typer.Option(help="Folder or .zip of databases that SOURCE lacks, or that replace its own."),
]
SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        help="Settings as for `harness train`, such as task.options.databases=DIR; repeatable.",
        autocompletion=complete.settings,
    ),
]
TaskOption = Annotated[
    str | None,
    typer.Option("--task", help="The task set, if not `files`.", autocompletion=complete.task_sets),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
_BUNDLED = ("pocket", "pocket_probe", "medical")
_BUNDLED_NAMES = f"{', '.join(_BUNDLED[:-1])} and {_BUNDLED[-1]}"
SEEDS = (3, 8)
POWER, ALPHA = 0.8, 0.05


@app.command()
def check(
    file: Annotated[
        Path | None,
        typer.Argument(
            help="Your questions: .jsonl, .json, .csv, .tsv or .parquet.", metavar="FILE"
        ),
    ] = None,
    set_: SetOption = None,
    config: Annotated[
        Path | None, typer.Option(help="A YAML file, for example a run's config.yaml.")
    ] = None,
    preset: complete.Preset = None,
    task: TaskOption = None,
    as_json: JsonOption = False,
) -> None:
    """Check your own questions and databases before `harness train --task files`; nothing is written.

    For another task set (--task NAME, or --preset), run the gold queries, list the tools of agents and check their
    schemas.

    To give one file per split instead of FILE: --set task.options.train=A --set task.options.val=B. Exit status 0 if a
    training could start, 1 if something is broken, 2 if the files cannot be read.
    """
    from harness.config import load_config
    from harness.plugins import make, task_set_spec
    from harness.training.data import refusals
    from harness_sql.tasks.files.checking import check

    if file is not None:
        _refuse_task_set(file)
    named = [] if file is None else [f"task.options.path={json.dumps(str(file))}"]
    if task is not None:
        named.append(f"task.name={json.dumps(task)}")
    elif (config is None and preset is None) or named:
        named.append("task.name=files")
    resolved = load_config(preset, config, [*named, *(set_ or [])])
    if resolved.task.name != "files":
        from harness_sql.cli.tools import check_tools

        return check_tools(resolved, as_json)
    tasks = make(task_set_spec("files"), resolved.task.options, "task.options")
    with progress_bar() as progress:
        report = check(tasks, progress)
    broken = []
    for split in dict.fromkeys((resolved.task.train_split, resolved.task.val_split)):
        if not report.sizes(split):
            broken.append(tasks.empty(split))
    if refused := refusals(resolved, tasks.good("all")):
        broken.append(_refused(resolved.reward.name, refused, tasks, report.questions))
    sizes = report.sizes(resolved.task.val_split)
    detectable = {seeds: _detectable(seeds, sizes) for seeds in SEEDS} if sizes else {}
    # Bad lines that are skipped on request leave a set that can be trained on.
    ok = not (broken or report.gold_failed or (report.bad and not tasks.skip_bad))
    if as_json:
        emit_json(
            {"ok": ok, **asdict(report), "broken": broken, "detectable": detectable}, indent=None
        )
    else:
        _print_check(report, tasks.skip_bad)
        if sizes:
            _print_detectable(resolved.task.val_split, sizes, detectable)
        for problem in broken:
            say(f"broken: {problem}")
        say("ok" if ok else "NOT ok")
    if not ok:
        raise typer.Exit(1)


def _detectable(seeds: int, sizes: Sequence[int]) -> float:
    """Return the smallest detectable difference if half of the answers are right.

    Only the variance of single answers counts.
    """
    from harness.compare.power import Variances

    return Variances(0, 0, 0, 0, 0.5, tuple(sizes), seeds, "single answers").detectable(
        seeds, sizes, POWER, ALPHA
    )


def _refuse_task_set(file: Path) -> None:
    """Refuse the name of a task set in place of a file."""
    from harness.plugins import registry

    # A file with an ending is meant as a file, even if a task set has its name.
    names = [] if file.suffix else [spec.name for spec in registry().specs("task set")]
    if str(file) in names:
        raise TaskSetError(
            f"{file} is a task set, not a file. Say `harness data check --task {file}`"
        )


def _refused(reward: str, refused: Mapping[str, str], tasks: FilesTasks, questions: int) -> str:
    """Return how many questions a reward cannot judge, with the place and reason of the first."""
    from harness_sql.tasks.files.checking import place

    first, reason = next(iter(refused.items()))
    first_question = next(one for one in tasks.collection.questions if one.id == first)
    how_many = f"{len(refused)} of {questions} questions"
    return (
        f"reward {reward!r} cannot judge {how_many}, the first being "
        f"{place(tasks, first_question)}: {reason}"
    )


def _print_detectable(split: str, sizes: Sequence[int], detectable: Mapping[int, float]) -> None:
    differences = []
    for seeds, difference in detectable.items():
        # Values of 1 and more lie outside the scale: not even all against nothing would show.
        what = f"{100 * difference:.1f} points" if difference < 1 else "nothing"
        differences.append(f"{what} with {seeds} trainings an arm")
    say(
        f"smallest detectable difference on {split} (questions: {sum(sizes):,}): "
        f"{', '.join(differences)}"
    )
    say(
        f"  (power {POWER:g}, alpha {ALPHA:g}, half of the answers right, "
        "no luck but that of single answers; "
        "`harness power` reckons with that of trainings and databases, once there are runs)"
    )


def _print_check(report: checking.Report, skip_bad: bool) -> None:
    names = ", ".join(report.files.values())
    databases = f"{report.databases} database{'s' if report.databases != 1 else ''}"
    say(
        f"{names}: {report.questions:,} good questions over {databases}, "
        f"{report.gold_queries:,} with a gold query"
    )
    counts = ", ".join(f"{split} {sum(report.sizes(split)):,}" for split in report.clusters)
    if counts:
        say(f"splits: {counts} ({report.splitting})")
    for split, clusters in report.clusters.items():
        say(f"  clusters of {split}: {_shown_clusters(clusters)}")
    for finding in report.bad:
        say(f"{'left out' if skip_bad else 'broken'}: {places(finding.places)}: {finding.what}")
    _print_golds(report)
    doubles = (
        ("asked again, with the same gold", report.twice),
        ("asked again, with another gold", report.differing),
        ("not in train, but its question or gold is", report.leaked),
    )
    repeated = False
    for what, groups in doubles:
        repeated = repeated or bool(groups)
        shown = "; ".join(places(group, " like ") for group in groups[:SHOWN])
        more = f"; and {len(groups) - SHOWN} more" if len(groups) > SHOWN else ""
        if groups:
            say(f"{what}: {len(groups)}: {shown}{more}")
    if report.questions and not repeated:
        say("no question is asked twice, and none of train's golds is asked for elsewhere")
    for group in report.together:
        say(f"judged on together, for their tables are the same: {', '.join(group)}")


def _print_golds(report: checking.Report) -> None:
    """Print what is wrong or remarkable about gold queries."""
    for finding in report.gold_failed:
        say(f"broken: gold fails: {places(finding.places)}: {finding.what}")
    if report.gold_empty:
        say(f"gold finds nothing, so a match says little: {places(report.gold_empty)}")
    if report.gold_differs:
        count = len(report.gold_differs)
        queries = "1 gold query depends" if count == 1 else f"{count} gold queries depend"
        say(
            f"{queries} on a row order that is not stated (add ORDER BY): "
            f"{places(report.gold_differs)}"
        )
    for finding in report.gold_order:
        say(f"gold {finding.what}: {len(finding.places)}: {places(finding.places)}")
    for finding in report.gold_changing:
        say(
            f"gold has {finding.what}, so it gives another result another time: "
            f"{len(finding.places)}: {places(finding.places)}"
        )


def _shown_clusters(clusters: Mapping[str, int]) -> str:
    """Return the sizes of the largest clusters, and the range of the others."""
    shown = [f"{name} {count}" for name, count in list(clusters.items())[:SHOWN]]
    others = list(clusters.values())[SHOWN:]
    more = f" and {len(others)} more of {others[-1]} to {others[0]}" if others else ""
    return f"{', '.join(shown)}{more}"


@app.command()
def spider(
    source: Annotated[
        Path,
        typer.Argument(
            help="Spider, Spider-Syn, -Realistic or -DK: archive (.zip), folder, "
            "or file of questions."
        ),
    ],
    databases: DatabasesOption = None,
    out: OutOption = None,
    as_json: JsonOption = False,
) -> None:
    """Check the files and gold queries of Spider or a variant and write its Parquet files."""
    from harness_sql.tasks.spider.prepare import prepare

    with progress_bar() as progress:
        report = prepare(source, out, databases, progress)
    _print_report(report, as_json)


@app.command()
def bird(
    sources: Annotated[
        list[Path], typer.Argument(help="BIRD's archives (.zip) or folders: dev, train, mini-dev.")
    ],
    databases: DatabasesOption = None,
    out: OutOption = None,
    as_json: JsonOption = False,
) -> None:
    """Check BIRD's files and gold queries and write its Parquet files."""
    from harness_sql.tasks.bird.prepare import prepare

    with progress_bar() as progress:
        report = prepare(sources, out, databases, progress)
    _print_report(report, as_json)


@app.command()
def fetch(
    name: Annotated[str, typer.Argument(help="Task set; only spider can be fetched.")],
    out: OutOption = None,
    url: Annotated[str | None, typer.Option(help="Another URL of the archive.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Download, check and prepare a task set; run it again to resume a download."""
    from harness_sql.tasks.spider.fetch import BUNDLE_URL, fetch
    from harness_sql.tasks.spider.layout import SPIDER
    from harness_sql.tasks.spider.prepare import prepare

    if name != "spider":
        raise TaskSetError(
            f"task set {name!r} cannot be fetched. Only spider can; {_BUNDLED_NAMES} are bundled"
        )
    target = out or SPIDER.default_folder()
    archive = target.with_name(f"{target.name}-download.zip")
    with progress_bar() as progress:
        if not archive.is_file():
            fetch(archive, url or BUNDLE_URL, progress)
        report = prepare(archive, target, progress=progress)
    archive.unlink()
    _print_report(report, as_json)


@app.command("list")
def list_(as_json: JsonOption = False) -> None:
    """List task sets and the state of their data."""
    rows = [{"name": name, "folder": "", "state": "bundled", "detail": ""} for name in _BUNDLED]
    rows += [state(layout) for layout in layouts().values()]
    rows += [one.state() for one in prepared().values()]
    if as_json:
        emit_json(rows, indent=None)
        return
    for entry in rows:
        cells = (entry["name"], entry["state"], entry["folder"], entry["detail"])
        say("  ".join(map(str, filter(None, cells))))


@app.command()
def verify(
    name: Annotated[str, typer.Argument(help="Task set.")] = "spider",
    folder: Annotated[Path | None, typer.Option("--dir", help="The prepared folder.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Compare the files of a prepared task set with its manifest; exit status 1 if any differs."""
    from harness_sql.tasks.prepared.verify import verify

    layout, others = layouts().get(name), prepared()
    if layout is not None:
        result = verify(folder or layout.default_folder(), layout)
    elif name in others:
        result = others[name].verify(folder)
    else:
        raise TaskSetError(
            f"task set {name!r} has no data to verify. "
            f"Use one of: {', '.join([*layouts(), *others])}; "
            f"{_BUNDLED_NAMES} check themselves when loaded"
        )
    if as_json:
        emit_json(result, indent=None)
    else:
        for problem in result["problems"]:
            say(problem)
        checked = (
            f"{result['files']} files checked"
            if result["manifest"]
            else "no manifest to check against"
        )
        say(f"{result['folder']}: {'ok' if result['ok'] else 'NOT ok'} ({checked})")
    if not result["ok"]:
        raise typer.Exit(1)


add_commands(app, "data")


def _print_report(report: Report, as_json: bool) -> None:
    if as_json:
        emit_json(asdict(report), indent=None)
        return
    absent = f"; the source has no {', '.join(report.absent)}" if report.absent else ""
    say(f"{report.folder}: task set {report.task_set}, {report.databases} databases{absent}")
    for name, part in report.parts.items():
        say(
            f"  {name}: {part.questions:,} questions, {part.runnable:,} with their database, "
            f"{part.gold_empty:,} with an empty gold result, "
            f"{len(part.gold_failed)} with a gold query that fails"
        )
    if report.missing:
        lost = []
        for db_id in report.missing:
            count = sum(part.skipped.get(db_id, 0) for part in report.parts.values())
            lost.append(f"{db_id} ({count} questions)")
        say(f"missing databases: {', '.join(lost)}")
    for file, reason in report.damaged.items():
        say(f"damaged database: {file}: {reason}")
    for one in report.unread:
        say(f"descriptions that cannot be read, left out: {one}")
    for name, part in report.parts.items():
        for failure in part.gold_failed:
            say(f"gold fails: {name} row {failure['row']} ({failure['db_id']}): {failure['error']}")

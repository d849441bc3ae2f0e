"""Convert a task set's archive to a prepared folder of databases, Parquet files and a manifest.

Everything is written to a temporary folder and moved to the target at the end, so that an
interruption leaves nothing behind.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from harness.errors import TaskSetError
from harness_sql.sqlite.databases import content_hash, databases_of
from harness_sql.sqlite.evaluator import gold_result
from harness_sql.sqlite.sandbox import Limits, execute
from harness_sql.tasks.prepared.descriptions import COLUMNS, read_descriptions
from harness_sql.tasks.prepared.layout import MANIFEST, Layout, Part, database_file
from harness_sql.tasks.prepared.source import Source, copy, read_questions, with_databases

SAMPLE_SIZE = 500
SAMPLE_SEED = "harness-spider-dev-500"
FORMAT = 1

Progress = Callable[[str, int, int], None]
"""Callback with the current activity, its progress and its total."""


@dataclass(slots=True)
class PartReport:
    """The outcome of one part.

    Attributes:
        questions: Number of questions in the source.
        runnable: Number of questions with an intact database. Only these are written.
        gold_failed: Runnable questions with a gold query that fails on its own database: `row`
            (position
            in the Parquet file), `db_id`, `query` and `error`.
        gold_empty: Number of runnable questions with an empty gold result.
        skipped: Number of skipped questions, by database.
    """

    questions: int = 0
    runnable: int = 0
    gold_failed: list[dict[str, Any]] = field(default_factory=list)
    gold_empty: int = 0
    skipped: dict[str, int] = field(default_factory=dict)


@dataclass(slots=True)
class Report:
    """The outcome of `prepare`.

    Attributes:
        missing: Databases that questions name and that do not exist.
        damaged: Unusable databases, with the reason.
        absent: Parts that the source lacks.
        unread: Unreadable files of descriptions, with the reason.
    """

    task_set: str
    folder: str
    databases: int
    missing: list[str]
    damaged: dict[str, str]
    parts: dict[str, PartReport]
    absent: list[str]
    unread: list[str] = field(default_factory=list)


def prepare(
    source: Source,
    layout: Layout,
    target: Path,
    databases: Source | None = None,
    progress: Progress | None = None,
) -> Report:
    """Prepare a task set.

    Args:
        source: Its questions, and its databases unless others are given.
        target: The prepared folder to write. An earlier prepared folder is replaced. It may be the
            source's folder; then only the Parquet files and the manifest are added.
        databases: A source of databases, which takes precedence over the source's own.

    Raises:
        TaskSetError: The source is damaged, has another layout or none of its databases, or the
            target
            holds something else.
    """
    say = progress or (lambda *_: None)
    questions: dict[Part, list[dict[str, str]]] = {}
    named: set[str] = set()
    for part in layout.parts:
        rows = read_questions(source, layout, part)
        if rows is not None:
            questions[part] = rows
            named |= {row["db_id"] for row in rows}
    if databases is not None:
        source = with_databases(source, databases, named)
    files = [file for file in source.files if file.endswith((".sqlite", ".sql"))]
    if not named:
        raise TaskSetError(f"{source.name} has no questions in it. Download it again")
    present = {file.split("/")[1] for file in files if file.endswith(".sqlite")}
    if not named & present:
        raise TaskSetError(
            f"{source.name} has none of the {len(named)} databases that its questions name. "
            f"Say where they are: {layout.command} SOURCE --databases FOLDER"
        )
    if source.folder is not None and source.folder.resolve() == target.resolve():
        return _build(source, layout, questions, target, say)
    if (
        target.exists()
        and not (target / MANIFEST).is_file()
        and (not target.is_dir() or any(target.iterdir()))
    ):
        raise TaskSetError(
            f"{target} is not empty and was not prepared by harness. Give another folder with --out"
        )
    target.parent.mkdir(parents=True, exist_ok=True)
    # A folder that fills the disk half way would fail after minutes of copying.
    needed = sum(source.files[file].size for file in files)
    free = shutil.disk_usage(target.parent).free
    if needed > free:
        raise TaskSetError(
            f"the databases of {source.name} unpack to {needed / 2**20:,.0f} MiB, "
            f"and the disk of {target} has "
            f"{free / 2**20:,.0f} MiB left. Make room, or choose another disk with --out"
        )
    work = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    try:
        for count, file in enumerate(files):
            copy(source, file, work / file)
            (work / file).chmod(0o444)
            say("copying databases", count + 1, len(files))
        report = _build(source, layout, questions, work, say)
        report.folder = str(target)
        _replace(work, target)
        return report
    except OSError as error:
        raise TaskSetError(f"cannot write {target}: {error.strerror or error}") from error
    finally:
        shutil.rmtree(work, ignore_errors=True)


def sample_of(count: int, size: int = SAMPLE_SIZE) -> list[int]:
    """Return the positions of the validation sample among `count` questions, in order.

    They are the `size` positions with the smallest SHA-256 of `harness-spider-dev-500:<position>`,
    the
    same on every machine.
    """
    ranked = sorted(
        range(count),
        key=lambda position: hashlib.sha256(f"{SAMPLE_SEED}:{position}".encode()).digest(),
    )
    return sorted(ranked[:size])


def _build(
    source: Source,
    layout: Layout,
    questions: Mapping[Part, list[dict[str, str]]],
    folder: Path,
    say: Progress,
) -> Report:
    databases, damaged = _check_databases(folder, layout, say)
    absent = [part.name for part in layout.parts if part not in questions]
    report = Report(layout.name, str(folder), len(databases), [], damaged, {}, absent)
    tables: dict[str, list[dict[str, str]]] = {}
    for part, rows in questions.items():
        tables[part.parquet], report.parts[part.name] = _part(
            part, rows, layout, folder, databases, say
        )
    skipped: set[str] = set()
    for part_report in report.parts.values():
        skipped.update(part_report.skipped)
    for db_id in sorted(skipped):
        # Damaged databases have a list of their own, with the reasons.
        if not any(f"/{db_id}/" in file for file in damaged):
            report.missing.append(db_id)
    manifest: dict[str, Any] = {
        "format": FORMAT,
        "task_set": layout.name,
        "source": source.name,
        "databases": databases,
        "missing": report.missing,
        "damaged": damaged,
        "parts": {name: asdict(part) for name, part in report.parts.items()},
    }
    for part in questions:
        if layout.sample and layout.sample[0] == part.name:
            whole = tables[part.parquet]
            drawn = [whole[position] for position in sample_of(len(whole))]
            tables[layout.sample[1].parquet] = drawn
            manifest["sample"] = {"size": SAMPLE_SIZE, "seed": SAMPLE_SEED}
    columns = [*layout.columns, "db_path"]
    hashes = {}
    for name, rows in tables.items():
        hashes[name] = _write_parquet(rows, columns, folder / name)
    manifest["parquet"] = hashes
    if layout.descriptions:
        described, report.unread = read_descriptions(source)
        manifest["unread_descriptions"] = report.unread
        hashes[layout.descriptions] = _write_parquet(
            described, COLUMNS, folder / layout.descriptions
        )
    _write(folder / MANIFEST, json.dumps(manifest, indent=1, ensure_ascii=False).encode())
    return report


def _check_databases(
    folder: Path, layout: Layout, say: Progress
) -> tuple[dict[str, str], dict[str, str]]:
    """Return hashes of the usable databases and reasons of the damaged ones, by relative path."""
    files: list[Path] = []
    for place in layout.folders:
        files += folder.glob(f"{place}/*/*.sqlite")
    files.sort()
    good: dict[str, str] = {}
    bad: dict[str, str] = {}
    for count, file in enumerate(files):
        name = file.relative_to(folder).as_posix()
        opened = execute(file, "SELECT count(*) FROM sqlite_master", Limits(timeout_s=30))
        if opened.ok and opened.rows[0][0]:
            good[name] = content_hash(str(file))
        else:
            bad[name] = (opened.error or "it has no tables").replace(str(folder) + os.sep, "")
        say("checking databases", count + 1, len(files))
    return good, bad


def _part(
    part: Part,
    questions: list[dict[str, str]],
    layout: Layout,
    folder: Path,
    databases: dict[str, str],
    say: Progress,
) -> tuple[list[dict[str, str]], PartReport]:
    report = PartReport(questions=len(questions))
    skipped: Counter[str] = Counter()
    rows: list[dict[str, str]] = []
    for count, question in enumerate(questions):
        say(f"running the gold queries of {part.name}", count + 1, len(questions))
        db_id = question["db_id"]
        path = _usable_path(db_id, part, databases)
        if path is None:
            skipped[db_id] += 1
            continue
        error, empty = _gold(folder / path, question["query"], layout)
        if error:
            report.gold_failed.append(
                {"row": len(rows), "db_id": db_id, "query": question["query"], "error": error}
            )
        elif empty:
            report.gold_empty += 1
        rows.append({**question, "db_path": path})
    report.runnable = len(rows)
    report.skipped = dict(sorted(skipped.items()))
    return rows, report


def _usable_path(db_id: str, part: Part, databases: Collection[str]) -> str | None:
    """Return the file of a database in the first folder that has it undamaged."""
    for place in part.folders:
        path = database_file(db_id, place)
        if path in databases:
            return path
    return None


def _gold(path: Path, query: str, layout: Layout) -> tuple[str, bool]:
    """Return the error of a gold query on its databases, and whether its result is empty on all."""
    empty = True
    for file in [str(path)] if layout.as_is else databases_of(path):
        result = gold_result(file, query, as_is=layout.as_is)
        if result.error is not None:
            return result.error if file == str(
                path
            ) else f"{result.error} (on {Path(file).name})", False
        empty = empty and not result.rows
    return "", empty


def _write_parquet(rows: list[dict[str, str]], columns: Sequence[str], path: Path) -> str:
    """Write the rows and return the file's SHA-256."""
    import pyarrow
    import pyarrow.parquet

    schema = pyarrow.schema([(name, pyarrow.string()) for name in columns])
    buffer = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows, schema=schema), buffer)
    _write(path, buffer.getvalue())
    return hashlib.sha256(buffer.getvalue()).hexdigest()


def _write(path: Path, content: bytes) -> None:
    part = path.with_name(f".{path.name}.part")
    part.write_bytes(content)
    os.replace(part, path)


def _replace(work: Path, target: Path) -> None:
    """Move a finished folder to the target, replacing an empty or earlier one."""
    work.chmod(0o755)
    if not target.exists():
        os.rename(work, target)
        return
    old = target.with_name(f".{target.name}-old-{os.getpid()}")
    os.rename(target, old)
    try:
        os.rename(work, target)
    except OSError:
        with contextlib.suppress(OSError):
            os.rename(old, target)
        raise
    shutil.rmtree(old, ignore_errors=True)

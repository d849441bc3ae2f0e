"""User-supplied questions for agents with tools, as JSON lines, a JSON list, CSV or Parquet."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

from harness.errors import TaskSetError
from harness.records import Task
from harness_mcp_tools.environment import MCP
from harness_sql.sqlite.environment import GOLD_IS
from harness_sql.tasks.files.reading import Row, Table, missing, read

COLUMNS = ("question", "answer", "id", "split", "cluster", "difficulty", "context", MCP)
"""Columns in use; those after `answer` are optional."""


def tasks_of(file: Path, split: str) -> list[Task]:
    """Return the questions of a file.

    They belong to `split` or, if that is empty, to the split in their column.

    Raises:
        TaskSetError: The file cannot be read, lacks a column, or a line is invalid; the message has
            the place.
    """
    table = read(file)
    wanted = ("question", "answer") if split else ("question", "answer", "split")
    for name in wanted:
        if name not in table.columns:
            optional = [column for column in COLUMNS if column not in wanted]
            raise TaskSetError(
                f"{file} has no column {name!r}. Columns: {', '.join(wanted)}, and optionally "
                f"{', '.join(optional)}"
            )
    tasks = [_task(table, row, split) for row in table.rows]
    ids: dict[str, str] = {}
    for task, row in zip(tasks, table.rows, strict=True):
        if task.id in ids:
            raise TaskSetError(
                f"{file}, {row.where}: its id, or question and answer, "
                f"are those of {ids[task.id]}, too"
            )
        ids[task.id] = row.where
    return tasks


def _task(table: Table, row: Row, split: str) -> Task:
    place = f"{table.file}, {row.where}"
    if row.problem:
        raise TaskSetError(f"{place}: {row.problem}")
    cells = {name: _cell(row.cells, name) for name in COLUMNS}
    for name in ("question", "answer") if split else ("question", "answer", "split"):
        if not cells[name]:
            raise TaskSetError(f"{place}: {name!r} is empty. Write one, or remove the line")
    made = hashlib.sha256(f"{cells['question']}\0{cells['answer']}".encode()).hexdigest()[:12]
    return Task(
        id=cells["id"] or made,
        task_set=MCP,
        split=split or cells["split"],
        question=cells["question"],
        gold=cells["answer"],
        cluster=cells["cluster"] or cells["id"] or made,
        difficulty=cells["difficulty"],
        data={GOLD_IS: "answer", "context": cells["context"], MCP: cells[MCP]},
    )


def _cell(cells: Mapping[str, object], name: str) -> str:
    value = cells.get(name)
    if missing(value):
        return ""
    if name == MCP and isinstance(value, list):
        return ",".join(map(str, value))
    return value.strip() if isinstance(value, str) else json.dumps(value, ensure_ascii=False)

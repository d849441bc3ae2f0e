"""Convert rows to questions: map columns to fields, find databases and report invalid rows."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from harness.errors import ConfigError, TaskSetError, nearest
from harness_sql.sqlite.evaluator import prepared
from harness_sql.sqlite.lexer import order_counts, states_order
from harness_sql.sqlite.sandbox import Limits, execute
from harness_sql.tasks.files.reading import Row, Table, missing

FIELDS: Mapping[str, tuple[str, ...]] = {
    "question": ("question", "utterance", "nl_question", "natural_language_question"),
    "gold": ("gold", "query", "sql", "gold_query", "gold_sql", "sql_query"),
    "answer": ("answer", "answers", "gold_answer", "expected_answer"),
    "database": ("database", "db_id", "db", "database_id", "db_path", "database_path", "db_name"),
    "id": ("id", "question_id", "task_id", "instance_id"),
    "difficulty": ("difficulty", "hardness", "level"),
    "evidence": ("evidence", "hint", "hints", "external_knowledge"),
    "cluster": ("cluster", "group"),
    "split": ("split", "partition", "subset"),
}
"""Fields of a row, and the column names that may hold them, in any case."""
SPLITS: Mapping[str, tuple[str, ...]] = {
    "train": ("train", "training"),
    "val": ("val", "valid", "validation", "dev", "eval"),
    "test": ("test", "testing"),
}
"""Splits, and their possible names in a column."""
LEAKED_CHARS = 12
"""A shorter gold query may occur in its question by chance."""
_ENDINGS = (".sqlite", ".db", ".sqlite3")
_OPTION = "--set task.options"


@dataclass(frozen=True, slots=True)
class Question:
    """A question as read from a file.

    Attributes:
        file: The file's role (`path`, `train`, `val`, `test`).
        where: Its line, such as `line 3`.
        gold: The gold query; empty if there is only an answer.
        database: The SQLite file.
        cluster, split: Empty if no column has them.
    """

    file: str
    where: str
    id: str
    question: str
    gold: str
    answer: str
    database: Path
    difficulty: str
    evidence: str
    cluster: str
    split: str


class BadRow(Exception):
    """A row is no valid question. The message has the reason and a remedy."""


def check_mapping(columns: Mapping[str, str | None]) -> None:
    """Refuse a mapping with unknown fields.

    Raises:
        ConfigError: A field is unknown. The message lists the fields.
    """
    for field in columns:
        if field not in FIELDS:
            hint = nearest(field, FIELDS, ".")
            raise ConfigError(
                f"task.options.columns: {field!r} is no field{hint} Fields: {', '.join(FIELDS)}"
            )


def columns_of(
    table: Table, mapping: Mapping[str, str | None], one_database: bool
) -> dict[str, str]:
    """Return the column of every field that a file has.

    Args:
        mapping: Columns that the user names; None to use no column for a field.
        one_database: Whether the database is known without a column.

    Raises:
        TaskSetError: A named column does not exist, several columns match, or a required one is
            missing.
    """
    chosen: dict[str, str] = {}
    there = f"Its columns: {', '.join(map(str, table.columns)) or 'none'}"
    for field, usual in FIELDS.items():
        if field in mapping:
            column = mapping[field]
            if column and column not in table.columns:
                raise TaskSetError(
                    f"{table.file} has no column {column!r} (task.options.columns.{field}). {there}"
                )
            if column:
                chosen[field] = column
            continue
        named = [column for column in table.columns if str(column).strip().lower() in usual]
        if len(named) > 1:
            raise TaskSetError(
                f"{table.file}: {' and '.join(map(repr, named))} may each be the {field}. "
                f"Say which: {_OPTION}.columns.{field}={named[0]}"
            )
        if named:
            chosen[field] = named[0]
    for fields, otherwise in (
        (("question",), ""),
        (("gold", "answer"), ""),
        (("database",), f", or give one SQLite file for all: {_OPTION}.databases=FILE"),
    ):
        if chosen.keys().isdisjoint(fields) and not (fields == ("database",) and one_database):
            usual_names = ", ".join(chain.from_iterable(FIELDS[field] for field in fields))
            raise TaskSetError(
                f"{table.file} has no column for the {' or the '.join(fields)} "
                f"(usual names: {usual_names}). {there}. "
                f"Name it: {_OPTION}.columns.{fields[0]}=COLUMN{otherwise}"
            )
    return chosen


def question_of(row: Row, file: str, columns: Mapping[str, str], databases: Databases) -> Question:
    """Return the question of a row.

    Raises:
        BadRow: The row is no valid question.
    """
    if row.problem:
        raise BadRow(row.problem)
    cells = {field: row.cells.get(column) for field, column in columns.items()}
    question = _text(cells, columns, "question")
    gold = _text(cells, columns, "gold")
    evidence = _text(cells, columns, "evidence")
    if not question:
        raise BadRow("the question is empty. Write one or remove the line")
    answer = _answer(cells.get("answer"))
    if not gold and not answer:
        raise BadRow("neither a gold query nor an answer. Add one or remove the line")
    # A short gold query may be in its question by chance; a long one gives the answer away.
    if len(gold) >= LEAKED_CHARS and (gold in question or gold in evidence):
        raise BadRow(
            "the gold query is in the text that the agent is shown, its question or evidence. "
            "Take it out there"
        )
    return Question(
        file=file,
        where=row.where,
        id=_label(cells, columns, "id"),
        question=question,
        gold=gold,
        answer=answer,
        database=databases.find(_label(cells, columns, "database")),
        difficulty=_label(cells, columns, "difficulty"),
        evidence=evidence,
        cluster=_label(cells, columns, "cluster"),
        split=_split(cells, columns) if "split" in columns else "",
    )


def order_problem(gold: str) -> str:
    """Return why the order of rows counts for a gold query as it should not; empty if it does.

    Verdicts look for the text "order by" (`harness_sql.sqlite.lexer.order_counts`).
    """
    judged, _ = prepared(gold, keep_distinct=False)
    counts, states = order_counts(judged), states_order(judged)
    if states and not counts:
        return (
            "has ORDER BY with other than one space between the words (a line break, a comment), "
            "so the order of rows does not count. Write ORDER BY with one space so that the order "
            "of rows counts"
        )
    if counts and not states:
        return (
            "has 'order by' in a string, name or comment only, so the order of rows counts. "
            "Write it in another way, such as 'order' || ' by', or state the order with ORDER BY"
        )
    return ""


class Databases:
    """Find the SQLite files that rows name, and check each once.

    Args:
        question_folder: The folder of the file of questions, to which its paths are relative.
        given: The option `databases`: a folder of databases, or one file for all questions.
    """

    def __init__(self, question_folder: Path, given: Path | None) -> None:
        self._one = given if given is not None and given.is_file() else None
        self._folder = question_folder if given is None or self._one else given
        self._found: dict[str, Path | str] = {}

    def find(self, name: str) -> Path:
        """Return the database of a name.

        Raises:
            BadRow: There is none, several match, or it is broken.
        """
        if name not in self._found:
            try:
                self._found[name] = self._look(name)
            except BadRow as error:
                self._found[name] = str(error)
        found = self._found[name]
        if isinstance(found, str):
            raise BadRow(found)
        return found

    def _look(self, name: str) -> Path:
        if not name and self._one is None:
            raise BadRow("no database is named. Name one, or remove the line")
        if name and self._one and Path(name).stem.lower() != self._one.stem.lower():
            raise BadRow(
                f"database {name!r}, but task.options.databases is the file {self._one.name}. "
                "Give the folder instead"
            )
        files = [self._one] if self._one else self._candidates(name)
        if not files:
            raise BadRow(
                f"no database {name!r} in {self._folder} (nor with {', '.join(_ENDINGS)}). "
                f"Correct the name, or the folder: {_OPTION}.databases=FOLDER"
            )
        if len(files) > 1:
            raise BadRow(
                f"database {name!r} may be {files[0]} or {files[1]}. "
                "Write the file's name with its ending"
            )
        path = files[0]
        opened = execute(
            path, "SELECT count(*) FROM sqlite_master WHERE type = 'table'", Limits(timeout_s=30)
        )
        if not opened.ok:
            raise BadRow(
                f"database {name or path.name!r}: {opened.error}. Replace it, or remove the line"
            )
        if not opened.rows[0][0]:
            raise BadRow(f"database {name or path.name!r} has no tables in it")
        return path

    def _candidates(self, name: str) -> list[Path]:
        """Return the named file, else files with an ending added, else `NAME/NAME.sqlite`.

        The last is Spider's and BIRD's layout.
        """
        try:
            if (self._folder / name).is_file():
                return [_absolute(self._folder / name)]
            for place in (self._folder, self._folder / name):
                files = [place / f"{name}{end}" for end in _ENDINGS]
                existing = [_absolute(file) for file in files if file.is_file()]
                if existing:
                    return existing
        except (OSError, ValueError):  # a name that no file can have
            pass
        return []


def _absolute(path: Path) -> Path:
    return Path(os.path.abspath(path))


def _text(cells: Mapping[str, object], columns: Mapping[str, str], field: str) -> str:
    value = cells.get(field)
    if missing(value):
        return ""
    if not isinstance(value, str):
        raise BadRow(
            f"{columns[field]!r} is {json.dumps(value, default=str):.60}, not text. "
            f"Write the {field} as text"
        )
    return _whole(value.strip(), columns[field])


def _label(cells: Mapping[str, object], columns: Mapping[str, str], field: str) -> str:
    value = cells.get(field)
    if missing(value):
        return ""
    if isinstance(value, float) and value.is_integer():
        value = int(value)  # what a column of whole numbers with gaps becomes in Parquet
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise BadRow(
            f"{columns[field]!r} is {json.dumps(value, default=str):.60}, "
            "not a text or whole number"
        )
    return _whole(str(value).strip(), columns[field])


def _answer(value: object) -> str:
    if missing(value):
        return ""
    return _whole(
        value.strip()
        if isinstance(value, str)
        else json.dumps(value, ensure_ascii=False, default=str),
        "answer",
    )


def _whole(text: str, column: str) -> str:
    if "\0" in text or (not text.isascii() and text != text.encode("utf-8", "ignore").decode()):
        raise BadRow(
            f"{column!r} holds characters that no text has (NUL, or half of a pair). Remove them"
        )
    return text


def _split(cells: Mapping[str, object], columns: Mapping[str, str]) -> str:
    label = _label(cells, columns, "split")
    for split, names in SPLITS.items():
        if label.lower() in names:
            return split
    known = ", ".join(chain.from_iterable(SPLITS.values()))
    raise BadRow(
        f"{columns['split']!r} is {label!r}, no split ({known}). "
        f"Correct it, or leave the column unused: {_OPTION}.columns.split=null"
    )

"""A database's schema as prompt text, identical for every framework.

A schema that is too long is cut at whole items: tables from the end, or columns from the end if not
even the first table fits. A closing note lists what was cut, so that no cut can look like a column.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from harness.errors import TaskSetError
from harness.util.formatting import shortened
from harness_sql.sqlite.lexer import split_statements, tokenize
from harness_sql.sqlite.sandbox import Execution, Limits, execute

_LIMITS = Limits(
    timeout_s=30, max_rows=20_000, max_result_bytes=1 << 26, max_value_bytes=10_000_000
)
_SAMPLE_CHARS = 40


@dataclass(frozen=True, slots=True)
class Column:
    """A column in the compact schema text."""

    name: str
    type: str
    key: bool
    target: str
    """The `table.column` that it references, or an empty string."""


def schema_text(
    db_path: str | Path,
    *,
    limit_chars: int | None,
    sample_rows: int = 0,
    style: Literal["create", "compact"] = "create",
    schema_file: str | Path | None = None,
    notes: Mapping[str, Sequence[str]] | None = None,
) -> str:
    """Return the schema of a database, at most `limit_chars` long.

    Args:
        db_path: A SQLite database file.
        limit_chars: Maximum length, or None for the whole schema.
        sample_rows: Number of rows to show below each table, as comments.
        style: `create` gives the CREATE statements of the database, including views; `compact`
            gives one
            line per table: `singer(singer_id int pk, name text, concert_id int ->
            concert.concert_id)`.
        schema_file: A `schema.sql` with CREATE TABLE statements to use instead, if the file exists
            (style `create` only).
        notes: Lines to show below tables, as comments, by the table's name in lower case.

    Raises:
        TaskSetError: The database is missing or damaged.
    """
    path = Path(db_path)
    from_file = style == "create" and schema_file is not None and Path(schema_file).is_file()
    if from_file and schema_file is not None:
        blocks = _statements_of(Path(schema_file))
    else:
        blocks = _blocks(path, style, sample_rows, notes or {})
    comment = "-- " if style == "create" else ""
    gap = "\n\n" if (sample_rows or notes) and not from_file else "\n"
    names: list[str] = []
    texts: list[str] = []
    for name, text in blocks:
        names.append(name)
        texts.append(text)
    whole = gap.join(texts)
    if limit_chars is None or len(whole) <= limit_chars:
        return whole
    # Whole tables only: half of one would look like all of its columns.
    for count in range(len(blocks) - 1, 0, -1):
        text = gap.join(texts[:count])
        note = _note(comment, names[count:], limit_chars - len(text) - 1)
        if note is not None:
            return f"{text}\n{note}"
    return _first_table(path, names, style, comment, limit_chars)


def _blocks(
    path: Path, style: str, sample_rows: int, notes: Mapping[str, Sequence[str]]
) -> list[tuple[str, str]]:
    """Return name and text of each table (and view, in style `create`), by order of creation."""
    kinds = "'table', 'view'" if style == "create" else "'table'"
    found = _query(
        path,
        f"SELECT name, sql, type FROM sqlite_master WHERE type IN ({kinds}) "
        "AND name NOT LIKE 'sqlite\\_%' ESCAPE '\\' "
        "ORDER BY type, rowid",
    )
    blocks: list[tuple[str, str]] = []
    for name, sql, kind in found.rows:
        if style == "compact":
            text = compact(name, columns_of(path, name))
        else:
            text = f"{str(sql).strip()};"
        for line in notes.get(name.lower(), ()):
            text += f"\n-- {line}"
        if sample_rows and kind == "table":
            text += _samples(path, name, sample_rows)
        blocks.append((name, text))
    return blocks


def tables_of(path: Path) -> dict[str, list[Column]]:
    """Return tables with their columns, in the order of their creation."""
    found = _query(
        path,
        "SELECT name FROM sqlite_master WHERE type = 'table' "
        "AND name NOT LIKE 'sqlite\\_%' ESCAPE '\\' ORDER BY rowid",
    )
    return {name: columns_of(path, name) for (name,) in found.rows}


def columns_of(path: Path, table: str) -> list[Column]:
    """Return the columns of one table."""
    targets = {}
    for key in _query(path, f"PRAGMA foreign_key_list({_quoted(table)})").rows:
        # A key without a column references the primary key of the other table.
        targets[str(key[3]).lower()] = f"{key[2]}.{key[4]}" if key[4] else str(key[2])
    columns = []
    for row in _query(path, f"PRAGMA table_info({_quoted(table)})").rows:
        # SQLite ignores the case of names, and a key may name its column in another one.
        target = targets.get(str(row[1]).lower(), "")
        columns.append(Column(row[1], row[2], bool(row[5]), target))
    return columns


def compact(table: str, columns: list[Column], more: str = "") -> str:
    """Return one line such as `singer(singer_id int pk, concert_id int -> concert.concert_id)`."""
    described = []
    for column in columns:
        words = [_bare(column.name), column.type.lower()]
        words += ["pk"] if column.key else []
        words += [f"-> {column.target}"] if column.target else []
        described.append(" ".join(filter(None, words)))
    if more:
        described.append(more)
    return f"{_bare(table)}({', '.join(described)})"


def _first_table(path: Path, names: list[str], style: str, comment: str, limit_chars: int) -> str:
    """Return the first table, with as many columns as fit."""
    name, others = names[0], names[1:]
    columns = columns_of(path, name)
    for count in range(len(columns), -1, -1):
        left = len(columns) - count
        more = f"{left} more columns" if left else ""
        if style == "compact":
            text = compact(name, columns[:count], f"... {more}" if more else "")
        else:
            text = _create(name, columns[:count], more)
        note = _note(comment, others, limit_chars - len(text) - 1)
        if others and note is not None:
            return f"{text}\n{note}"
        if not others and len(text) <= limit_chars:
            return text
    note = _note(comment, names, limit_chars)
    return note or ""


def _create(name: str, columns: list[Column], more: str) -> str:
    lines = [f"  {_quoted(column.name)} {column.type}".rstrip() for column in columns]
    body = ",\n".join(lines)
    if more:
        body += f"\n  -- {more}"
    return f"CREATE TABLE {_quoted(name)} (\n{body}\n);"


def _note(comment: str, names: list[str], room: int) -> str | None:
    """Return a note on omitted tables, with their names if they fit, or None if nothing fits."""
    what = f"{len(names)} more table{'s' if len(names) > 1 else ''}"
    for note in (f"{comment}{what}: {', '.join(names)}", f"{comment}{what}"):
        if len(note) <= room:
            return note
    return None


def _samples(path: Path, table: str, count: int) -> str:
    shown = execute(path, f"SELECT * FROM {_quoted(table)} LIMIT {count}", _LIMITS)
    if not shown.ok or not shown.rows:
        return ""
    text = f"\n-- {' | '.join(shown.columns)}"
    for row in shown.rows:
        text += f"\n-- {' | '.join(map(_sample, row))}"
    return text


def _sample(value: object) -> str:
    """Return a cell on one line: a line break would end the comment that it is part of."""
    cell = "NULL" if value is None else " ".join(str(value).split())
    return shortened(cell, _SAMPLE_CHARS, "…", kept=_SAMPLE_CHARS)


def _statements_of(file: Path) -> list[tuple[str, str]]:
    try:
        script = file.read_text(encoding="utf-8", errors="ignore")
    except OSError as error:
        raise TaskSetError(f"cannot read {file}: {error.strerror}") from error
    blocks: list[tuple[str, str]] = []
    for statement in split_statements(script):
        tokens = [token for token in tokenize(statement) if token.kind not in ("space", "comment")]
        # CREATE TABLE IF NOT EXISTS, and a name: dumps of databases have either form.
        words = [token.text.lower() for token in tokens[:6]]
        if words[:2] != ["create", "table"]:
            continue
        at = 5 if words[2:5] == ["if", "not", "exists"] else 2
        name = tokens[at].text.strip("\"'`[]") if len(tokens) > at else "?"
        blocks.append((name, statement.strip()))
    return blocks


def _query(path: Path, sql: str) -> Execution:
    result = execute(path, sql, _LIMITS)
    if not result.ok:
        raise TaskSetError(f"cannot read the schema of {path}: {result.error}")
    return result


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _bare(name: str) -> str:
    return name if name.isidentifier() and name.isascii() else _quoted(name)

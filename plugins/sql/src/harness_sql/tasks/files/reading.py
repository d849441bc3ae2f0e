"""Read files of questions with the place of each row: JSON lines, a JSON list, CSV or Parquet."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from harness.errors import TaskSetError
from harness.util.parsing import read_regular

_JSON = (".jsonl", ".ndjson", ".json")
_SHEETS = (".xlsx", ".xls", ".ods")
_SEPARATORS = {".csv": ",", ".tsv": "\t"}
_PARQUET = (".parquet", ".pq")
FORMATS = "JSON lines (.jsonl), a JSON list (.json), CSV (.csv, .tsv) or Parquet (.parquet)"


@dataclass(frozen=True, slots=True)
class Row:
    """One row: its cells by column, or its problem.

    Attributes:
        where: `line 3`, counted from 1; in Parquet files, which have no lines, `row 3`.
    """

    where: str
    cells: Mapping[str, Any]
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Table:
    """A file's rows, in order."""

    file: Path
    columns: tuple[str, ...]
    rows: Sequence[Row]


def read(file: Path) -> Table:
    """Return all rows of a file, which is opened once, for reading.

    Raises:
        TaskSetError: It does not exist, has no known format, or is damaged as a whole.
    """
    kind = file.suffix.lower()
    try:
        content = read_regular(file)
    except FileNotFoundError as error:
        raise TaskSetError(f"no file {file} (from {Path.cwd()}). Correct its path") from error
    except OSError as error:
        raise TaskSetError(f"cannot read {file}: {error.strerror}") from error
    if kind not in (*_JSON, *_SEPARATORS, *_PARQUET):
        also = "; a spreadsheet saves itself as CSV UTF-8" if kind in _SHEETS else ""
        raise TaskSetError(
            f"{file} ends in {kind or 'nothing'!r}, which says no format. Give {FORMATS}{also}"
        )
    if kind in _PARQUET:
        columns, rows = _parquet(file, content)
    elif kind in _SEPARATORS:
        columns, rows = _csv(file, content, _SEPARATORS[kind])
    else:
        # A list in one JSON file and JSON lines share an ending.
        is_list = content.lstrip(b"\xef\xbb\xbf \t\r\n")[:1] == b"["
        rows = _json_list(file, content) if is_list else _json_lines(content)
        columns = tuple(dict.fromkeys(chain.from_iterable(row.cells for row in rows)))
    if not rows:
        raise TaskSetError(f"{file} has no questions in it")
    if all(row.problem for row in rows):
        raise TaskSetError(
            f"{file}, {rows[0].where}: {rows[0].problem}. No other line can be read either"
        )
    return Table(file, columns, rows)


def missing(value: object) -> bool:
    """Return whether a cell is empty."""
    return (
        value is None
        or (isinstance(value, float) and math.isnan(value))
        or (isinstance(value, str) and not value.strip())
    )


def _json_lines(content: bytes) -> list[Row]:
    rows = []
    for number, line in enumerate(content.removeprefix(b"\xef\xbb\xbf").split(b"\n"), 1):
        if not line.strip():
            continue
        where = f"line {number}"
        try:
            value = json.loads(line.decode())
        except UnicodeDecodeError as error:
            rows.append(
                Row(where, {}, f"not UTF-8 at its byte {error.start + 1}. Save the file as UTF-8")
            )
        except json.JSONDecodeError as error:
            rows.append(
                Row(
                    where,
                    {},
                    f"not JSON: {error.msg} at its character {error.colno}. One object a line",
                )
            )
        except (ValueError, RecursionError) as error:
            rows.append(Row(where, {}, f"not JSON that can be read: {error}. One object a line"))
        else:
            rows.append(_object(where, value))
    return rows


def _json_list(file: Path, content: bytes) -> list[Row]:
    text = _decoded(file, content)
    decoder = json.JSONDecoder()
    rows: list[Row] = []
    line, seen = 1, 0
    at = text.index("[") + 1
    try:
        while True:
            at = _skipped(text, at)
            if text[at : at + 1] == "]":
                if text[at + 1 :].strip():
                    raise json.JSONDecodeError("Extra data", text, at + 1)
                return rows
            if rows:
                if text[at : at + 1] != ",":
                    raise json.JSONDecodeError("Expecting ',' or ']'", text, at)
                at = _skipped(text, at + 1)
            line += text.count("\n", seen, at)
            seen = at
            value, at = decoder.raw_decode(text, at)
            rows.append(_object(f"line {line}", value))
    except json.JSONDecodeError as error:
        raise TaskSetError(
            f"{file}, line {error.lineno}: not JSON: {error.msg} at its character {error.colno}. "
            "Correct it there"
        ) from error
    except (ValueError, RecursionError) as error:
        raise TaskSetError(f"{file}, line {line}: not JSON that can be read: {error}") from error


def _skipped(text: str, at: int) -> int:
    while text[at : at + 1] and text[at] in " \t\r\n":
        at += 1
    return at


def _object(where: str, value: object) -> Row:
    if isinstance(value, dict):
        return Row(where, value)
    return Row(where, {}, f'a {type(value).__name__}, not an object such as {{"question": ...}}')


def _csv(file: Path, content: bytes, separator: str) -> tuple[tuple[str, ...], list[Row]]:
    text = _decoded(file, content)
    header = text.partition("\n")[0]
    # Spreadsheets write semicolons where a comma is the decimal point.
    for other in (separator, ";", "\t"):
        if other in header:
            separator = other
            break
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator, strict=True)
    records = _records(file, reader)
    names = [name.strip() for name in next(records, ("", []))[1]]
    if len(set(names)) < len(names):
        raise TaskSetError(
            f"{file}, line 1: two columns have one name. The first line must name the columns"
        )
    rows = []
    for where, cells in records:
        problem = ""
        if len(cells) != len(names):
            problem = (
                f"{len(cells)} cells, but {len(names)} columns. "
                f"Put text with {separator!r} in it in double quotes"
            )
        # A row with too few or too many cells stays, so that all of them can be reported at once.
        rows.append(Row(where, dict(zip(names, cells, strict=False)), problem))
    return tuple(names), rows


def _records(file: Path, reader: Any) -> Iterator[tuple[str, list[str]]]:
    """Yield line and cells of every record that is not blank.

    A record of several lines has the number of its first line.
    """
    while True:
        where = f"line {reader.line_num + 1}"
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:  # the beginning of the next record is unknown
            hint = "Look for a double quote that is not closed, or not doubled inside of quotes"
            raise TaskSetError(f"{file}, {where}: not CSV: {error}. {hint}") from error
        if cells:
            yield where, cells


def _parquet(file: Path, content: bytes) -> tuple[tuple[str, ...], list[Row]]:
    import pyarrow
    import pyarrow.parquet

    try:
        table = pyarrow.parquet.read_table(io.BytesIO(content))
        cells = table.to_pylist()
    except (OSError, ValueError, OverflowError, pyarrow.ArrowException) as error:
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise TaskSetError(f"{file} is no whole Parquet file: {reason}. Write it again") from error
    rows = [Row(f"row {number}", row) for number, row in enumerate(cells, 1)]
    return tuple(table.column_names), rows


def _decoded(file: Path, content: bytes) -> str:
    try:
        return content.removeprefix(b"\xef\xbb\xbf").decode()
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise TaskSetError(
            f"{file}, line {line}: not UTF-8. Save the file as UTF-8 (in Excel: CSV UTF-8)"
        ) from error

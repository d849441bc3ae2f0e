"""Read descriptions of tables and columns from BIRD's `database_description/TABLE.csv` files.

The files have several encodings.
"""

from __future__ import annotations

import codecs
import csv
import io
from collections.abc import Iterator
from pathlib import PurePosixPath

from harness.util.formatting import shortened
from harness_sql.tasks.prepared.source import Source

COLUMNS = ("db_id", "table", "column", "text")
MAX_CHARS = 200
"""Maximum length of one column's text. Some texts list whole tables of values."""
_LOOKED_AT = 512
"""Number of bytes in which UTF-16 without a mark is detected: every other one is zero."""
_NO_CP1252 = frozenset((0x81, 0x8D, 0x8F, 0x90, 0x9D))
"""Bytes that Windows-1252 does not define."""
_NAME = "original_column_name"


def read_descriptions(source: Source) -> tuple[list[dict[str, str]], list[str]]:
    """Read the descriptions of tables and columns in the source's files.

    Returns:
        One row for each described column, with its text on one line, by database and table; and the
        unreadable files, each with the reason.
    """
    rows: list[dict[str, str]] = []
    unread: list[str] = []
    for file in source.files:  # in their order: an archive in an archive is read forwards
        if not file.endswith(".csv"):
            continue
        content = source.read(file)
        table, db_id = PurePosixPath(file).stem, file.split("/")[1]
        try:
            described = list(_described(decoded(content)))
        except (csv.Error, ValueError) as error:
            unread.append(f"{file}: {error}")
            continue
        for column, text in described:
            rows.append({"db_id": db_id, "table": table, "column": column, "text": text})
    return sorted(rows, key=lambda row: (row["db_id"], row["table"])), unread


def decoded(content: bytes) -> str:
    """Return the text of a file in UTF-8, UTF-16, Windows-1252 or ISO-8859-1.

    A byte order mark is optional. Each byte that is not valid UTF-8 is read as Windows-1252,
    because some files mix the two.
    """
    if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return content.decode("utf-16", "replace")
    beginning = content[:_LOOKED_AT]
    # Half of the bytes of UTF-16 are zero in text with few characters beyond Latin: which half
    # tells the order of bytes.
    nulls = [beginning[0::2].count(0), beginning[1::2].count(0)]
    if max(nulls) > len(beginning) // 4:
        return content.decode("utf-16-be" if nulls[0] > nulls[1] else "utf-16-le", "replace")
    return content.removeprefix(codecs.BOM_UTF8).decode("utf-8", "harness_cp1252")


def _as_windows_latin(error: UnicodeError) -> tuple[str, int]:
    """Decode the bytes of a decoding error as Windows-1252, else as ISO-8859-1."""
    if not isinstance(error, UnicodeDecodeError):
        raise error
    text = ""
    for byte in error.object[error.start : error.end]:
        text += bytes([byte]).decode("latin-1" if byte in _NO_CP1252 else "cp1252")
    return text, error.end


codecs.register_error("harness_cp1252", _as_windows_latin)


def _described(text: str) -> Iterator[tuple[str, str]]:
    """Yield columns and their texts: full name, meaning and values, without repetitions.

    Raises:
        ValueError, csv.Error: It is no table with the columns of BIRD.
    """
    text = text.replace("\0", "")
    first_line = text.partition("\n")[0]
    delimiter = max(",;\t", key=first_line.count)
    reader = csv.DictReader(io.StringIO(text, newline=""), delimiter=delimiter)
    names = [_header(name) for name in reader.fieldnames or ()]
    if _NAME not in names:
        raise ValueError(f"it has no column {_NAME!r}; its first line is {first_line[:60]!r}")
    reader.fieldnames = names
    for row in reader:
        # A row with too many or too few cells has a list or None among its values.
        cells = {}
        for name, cell in row.items():
            if isinstance(cell, str):
                cells[name] = " ".join(cell.split())
        column = cells.get(_NAME, "")
        # Many descriptions only repeat the name, or each other in another case.
        repeated = {column.lower()}
        texts: list[str] = []
        for name in ("column_name", "column_description", "value_description"):
            cell = cells.get(name, "")
            if cell and cell.lower() not in repeated:
                repeated.add(cell.lower())
                texts.append(cell)
        text = "; ".join(texts)
        if column and text:
            yield column, shortened(text, MAX_CHARS, "…")


def _header(name: str | None) -> str:
    """Return a column's name as in BIRD, normalizing white space, marks and case."""
    return (name or "").strip("\ufeff \t").lower()

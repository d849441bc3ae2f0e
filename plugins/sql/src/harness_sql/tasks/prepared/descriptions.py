"""What tables and columns mean, from BIRD's `database_description/TABLE.csv`, which are in several encodings."""

from __future__ import annotations

import codecs
import csv
import io
from collections.abc import Iterator
from pathlib import PurePosixPath

from harness_sql.tasks.prepared.source import Source

COLUMNS = ("db_id", "table", "column", "text")
MAX_CHARS = 200
"""Of one column's text; some tell whole tables of values."""


def read_descriptions(source: Source) -> list[dict[str, str]]:
    """One row for each described column, with its text in one line; by database and table."""
    rows = []
    for file in source.files:  # in their order: an archive in an archive is read forwards
        if file.endswith(".csv"):
            content = source.read(file)
            table, db_id = PurePosixPath(file).stem, file.split("/")[1]
            rows += [
                {"db_id": db_id, "table": table, "column": column, "text": text}
                for column, text in _described(decoded(content))
            ]
    return sorted(rows, key=lambda row: (row["db_id"], row["table"]))


def decoded(content: bytes) -> str:
    """The text of a file in UTF-8 or UTF-16 with or without its mark, in Windows' Latin, or in ISO Latin."""
    if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return content.decode("utf-16", "replace")
    for encoding in ("utf-8-sig", "cp1252"):
        try:
            return content.decode(encoding)
        except UnicodeDecodeError:
            continue
    return content.decode("latin-1")


def _described(text: str) -> Iterator[tuple[str, str]]:
    """Columns and their texts: the longer name, what it means, and what its values mean, as far as they say more."""
    for row in csv.DictReader(io.StringIO(text.replace("\0", ""), newline="")):
        cells = {
            (name or "").strip(): " ".join(cell.split())
            for name, cell in row.items()
            if isinstance(cell, str)
        }
        column = cells.get("original_column_name", "")
        said: list[str] = []
        for name in ("column_name", "column_description", "value_description"):
            cell = cells.get(name, "")
            if cell and cell.lower() not in (column.lower(), *(one.lower() for one in said)):
                said.append(cell)
        told = "; ".join(said)
        if column and told:
            yield column, told if len(told) <= MAX_CHARS else told[: MAX_CHARS - 1] + "…"

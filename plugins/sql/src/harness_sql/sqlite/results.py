"""Limits and results of an execution, and the text of a result that an agent sees."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from harness.util.formatting import shortened

ErrorType = Literal[
    "syntax",
    "denied",
    "timeout",
    "too_large",
    "memory",
    "missing_database",
    "damaged_database",
    "io",
]
"""`syntax` covers every error of SQLite about the query itself, including unknown names."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one execution and of the result that is kept and shown."""

    timeout_s: float = 5.0
    max_rows: int = 5
    """Number of rows kept. The query is stopped at the next one."""
    max_cell_chars: int = 60
    """Number of characters shown of one cell or column name."""
    max_result_bytes: int = 1 << 20
    """Total size of the rows kept: the bytes of text and blobs, and 8 for any other cell."""
    max_text_chars: int = 400
    """Length of the text that an agent sees."""
    max_value_bytes: int = 250_000
    """Longest text or blob that SQLite may read or build. In a result of more than 64 columns, each
    value may have less: all share 64 times this length.
    """
    reversed_rows: bool = False
    """Whether to reverse rows without an ORDER BY, to reveal results that depend on their order."""
    find_changing: bool = False
    """Whether to fill `Execution.changing`. This executes a query with date functions twice."""


AGENT_LIMITS = Limits()


@dataclass(frozen=True, slots=True)
class Execution:
    """The outcome of one query.

    Attributes:
        columns: Column names, `[columns]`.
        rows: The rows kept, `[rows][columns]`. Invalid bytes of text that is not UTF-8 are dropped.
        truncated: Whether there were more rows than were kept.
        error: One line that describes the error, or None.
        tables: Lower-case names of the tables that the query reads, known before its first row.
        reads: The columns that it reads, as `table.column`.
        changing: Inputs of the query that change over time: `random()`, `'now'`. Filled only with
            `Limits.find_changing`.
    """

    ok: bool
    columns: tuple[str, ...] = ()
    rows: list[tuple[Any, ...]] = field(default_factory=list)
    truncated: bool = False
    error: str | None = None
    error_type: ErrorType | None = None
    elapsed_s: float = 0.0
    tables: frozenset[str] = frozenset()
    reads: frozenset[str] = frozenset()
    changing: frozenset[str] = frozenset()

    @property
    def text(self) -> str:
        """Return the text that an agent sees, under the default limits."""
        return render(self)


def render(execution: Execution, limits: Limits = AGENT_LIMITS) -> str:
    """Return the text of an execution that an agent sees. It is the same for every framework.

    It is a header and one row per line, with cells separated by ` | `; or `no rows`; or `Error:
    ...`.
    The text shows where something was cut: cells end in `…`, and a note follows dropped columns and
    rows.
    """
    if not execution.ok:
        return shortened(
            f"Error: {_one_line(execution.error or 'unknown')}", limits.max_text_chars, "…"
        )
    if not execution.rows:
        return "no rows"
    names = [shortened(_one_line(name), limits.max_cell_chars, "…") for name in execution.columns]
    shown = _columns_that_fit(names, limits.max_text_chars // 2)
    lines = [" | ".join(names[:shown])]
    notes = []
    if shown < len(names):
        notes.append(f"(only the first {shown} of {len(names)} columns are shown)")
    # 48 characters are room for the note on rows, which is not known yet.
    room = limits.max_text_chars - len(lines[0]) - sum(len(note) + 1 for note in notes) - 48
    rows = 0
    for row in execution.rows[: limits.max_rows]:
        line = " | ".join(_cell(value, limits.max_cell_chars) for value in row[:shown])
        if rows and len(line) + 1 > room:
            break
        lines.append(shortened(line, max(room, 24), "…"))
        room -= len(line) + 1
        rows += 1
    if execution.truncated or rows < len(execution.rows):
        notes.append(
            f"(only the first {rows} {'row is' if rows == 1 else 'rows are'} shown, there are more)"
        )
    return shortened("\n".join(lines + notes), limits.max_text_chars, "…")


def _columns_that_fit(names: list[str], room: int) -> int:
    used = 0
    for count, name in enumerate(names):
        used += len(name) + 3
        if count and used > room:
            return count
    return len(names)


def _cell(value: object, limit: int) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, bytes):
        return f"x'{value.hex()}'" if len(value) <= 16 else f"(blob of {len(value)} bytes)"
    return shortened(_one_line(str(value)[: 2 * limit + 2]), limit, "…")


def _one_line(text: str) -> str:
    return " ".join(text.splitlines()) if text.splitlines() else ""

"""What an execution may cost, what became of it, and the text that an agent sees of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

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
"""`syntax` is every complaint of SQLite about the query itself, unknown names included."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What one execution may cost, and how much of its result is kept and shown."""

    timeout_s: float = 5.0
    max_rows: int = 5
    """Rows kept; the query is stopped at the next one."""
    max_cell_chars: int = 60
    """Characters shown of one cell or column name."""
    max_result_bytes: int = 1 << 20
    """Sum of the text and blob bytes (and 8 for any other cell) of the rows kept."""
    max_text_chars: int = 400
    """Length of the text that an agent sees."""
    max_value_bytes: int = 250_000
    """Longest text or blob that SQLite may read or build. Of more than 64 columns, each may have less: 64 times
    this length, shared among them."""
    reversed_rows: bool = False
    """Whether rows that no ORDER BY orders come the other way round, which shows what hangs on their order."""
    find_changing: bool = False
    """Whether `Execution.changing` is filled. A query with date functions is executed twice for it."""


AGENT_LIMITS = Limits()


@dataclass(frozen=True, slots=True)
class Execution:
    """What became of one query.

    Attributes:
        columns: Column names, `[columns]`.
        rows: The rows kept, `[rows][columns]`; text that is not UTF-8 is decoded without its bad bytes.
        truncated: Whether there were more rows than were kept.
        error: What went wrong, in one line, or None.
        tables: Lower-case names of the tables that the query reads, known before its first row.
        reads: The columns that it reads, `table.column`.
        changing: What the query asks for that is different at another time: `random()`, `'now'`. Filled only with
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
        """What an agent sees of it, under the default limits."""
        return render(self)


def render(execution: Execution, limits: Limits = AGENT_LIMITS) -> str:
    """The text that an agent sees of an execution; the same for every framework.

    A header and one row a line, cells parted by ` | `; `no rows`; or `Error: ...`. Whatever is left out is
    said: cells end in `…`, columns and rows are dropped from the end with a note.
    """
    if not execution.ok:
        return _cut(f"Error: {_one_line(execution.error or 'unknown')}", limits.max_text_chars)
    if not execution.rows:
        return "no rows"
    names = [_cut(_one_line(name), limits.max_cell_chars) for name in execution.columns]
    shown = _columns_that_fit(names, limits.max_text_chars // 2)
    lines = [" | ".join(names[:shown])]
    notes = (
        [f"(only the first {shown} of {len(names)} columns are shown)"]
        if shown < len(names)
        else []
    )
    room = limits.max_text_chars - len(lines[0]) - sum(len(note) + 1 for note in notes) - 48
    rows = 0
    for row in execution.rows[: limits.max_rows]:
        line = " | ".join(_cell(value, limits.max_cell_chars) for value in row[:shown])
        if rows and len(line) + 1 > room:
            break
        lines.append(_cut(line, max(room, 24)))
        room -= len(line) + 1
        rows += 1
    if execution.truncated or rows < len(execution.rows):
        notes.append(
            f"(only the first {rows} {'row is' if rows == 1 else 'rows are'} shown, there are more)"
        )
    return _cut("\n".join(lines + notes), limits.max_text_chars)


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
    return _cut(_one_line(str(value)[: 2 * limit + 2]), limit)


def _one_line(text: str) -> str:
    return " ".join(text.splitlines()) if text.splitlines() else ""


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: max(limit - 1, 0)] + "…"

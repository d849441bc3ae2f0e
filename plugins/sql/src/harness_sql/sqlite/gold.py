"""Gold results, computed once per database content and query."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sys
import tempfile
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from harness_sql.sqlite.kept import Kept
from harness_sql.sqlite.sandbox import Limits, execute

_MAX_ROWS = 1_000_000
_MAX_BYTES = 1 << 28


@dataclass(frozen=True, slots=True)
class GoldResult:
    """The result of a gold query on one database, or `error` if there is none.

    `size_bytes` is counted as for `Limits.max_result_bytes`. `elapsed_s` is the time of the
    original
    execution.
    """

    columns: tuple[str, ...] = ()
    rows: list[tuple[Any, ...]] = field(default_factory=list)
    tables: frozenset[str] = frozenset()
    reads: frozenset[str] = frozenset()
    size_bytes: int = 0
    elapsed_s: float = 0.0
    error: str | None = None
    error_type: str | None = None
    changing: frozenset[str] = frozenset()
    """Inputs of the query that change over time, as in `Execution.changing`."""


class GoldCache:
    """Cache gold results in memory and, optionally, in a folder that processes share.

    Args:
        folder: Folder of results, one small JSON file each, written atomically.
        max_bytes: Memory limit, counted as the size of rows and queries in memory.
    """

    def __init__(self, folder: str | Path | None = None, max_bytes: int = 1 << 27) -> None:
        self._folder = Path(folder) if folder is not None else None
        self._kept: Kept[tuple[str, str], GoldResult] = Kept(max_bytes)

    def clear(self) -> None:
        """Clear the results in memory."""
        self._kept.clear()

    def get(self, path: str, digest: str, sql: str, limits: Limits) -> GoldResult:
        """Return the result of a gold query on a database with this content hash.

        Failures and results that change over time are not cached.
        """
        key = (digest, sql)
        known = self._kept.get(key)
        if known is not None:
            return known
        stored = self._read(key)
        result = stored or _compute(path, sql, limits)
        if result.error is None and not result.changing:
            self._kept.put(key, result, _bytes_in_memory(result) + sys.getsizeof(sql))
            if stored is None:
                self._write(key, result)
        return result

    def _file(self, key: tuple[str, str]) -> Path | None:
        if self._folder is None:
            return None
        return (
            self._folder / key[0][:16] / f"{hashlib.sha256(key[1].encode()).hexdigest()[:32]}.json"
        )

    def _read(self, key: tuple[str, str]) -> GoldResult | None:
        file = self._file(key)
        if file is None:
            return None
        try:
            stored = json.loads(file.read_text(encoding="utf-8"))
            if stored["key"] != list(key) or stored["changing"]:
                return None
            rows = []
            for row in stored["rows"]:
                rows.append(tuple(map(_from_json, row)))
            return GoldResult(
                tuple(stored["columns"]),
                rows,
                frozenset(stored["tables"]),
                frozenset(stored["reads"]),
                stored["size_bytes"],
                stored["elapsed_s"],
            )
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def _write(self, key: tuple[str, str], result: GoldResult) -> None:
        file = self._file(key)
        if file is None:
            return
        rows = []
        for row in result.rows:
            rows.append(list(map(_as_json, row)))
        stored = {
            "key": key,
            "columns": result.columns,
            "rows": rows,
            "tables": sorted(result.tables),
            "reads": sorted(result.reads),
            "size_bytes": result.size_bytes,
            "elapsed_s": result.elapsed_s,
            # Always empty. Files from versions that judged a query by its text lack this key and
            # are ignored.
            "changing": sorted(result.changing),
        }
        with contextlib.suppress(OSError):  # a full disk must not cost a verdict
            file.parent.mkdir(parents=True, exist_ok=True)
            handle, name = tempfile.mkstemp(dir=file.parent, suffix=".part")
            with os.fdopen(handle, "w", encoding="utf-8") as out:
                json.dump(stored, out)
            os.replace(name, file)


def _as_json(cell: object) -> object:
    """Return a cell for a file: JSON has no bytes, so these are an object with their digits."""
    return {"x": cell.hex()} if isinstance(cell, bytes) else cell


def _from_json(cell: Any) -> Any:
    return bytes.fromhex(cell["x"]) if isinstance(cell, dict) else cell


def _compute(path: str, sql: str, limits: Limits) -> GoldResult:
    room = replace(limits, max_rows=_MAX_ROWS, max_result_bytes=_MAX_BYTES, find_changing=True)
    result = execute(path, sql, room)
    if result.ok and result.truncated:
        return GoldResult(error="its result is too large to compare", error_type="too_large")
    if not result.ok:
        return GoldResult(error=result.error or "unknown", error_type=result.error_type)
    size = 0
    for row in result.rows:
        size += sum(len(v) if isinstance(v, str | bytes) else 8 for v in row)
    return GoldResult(
        result.columns,
        result.rows,
        result.tables,
        result.reads,
        size,
        result.elapsed_s,
        changing=result.changing,
    )


def _bytes_in_memory(result: GoldResult) -> int:
    size = 500 + sum(map(sys.getsizeof, (*result.columns, *result.tables, *result.reads)))
    for row in result.rows:
        # 8 bytes are the list's pointer to the row.
        size += sys.getsizeof(row) + 8 + sum(map(sys.getsizeof, row))
    return size

"""Read-only execution of SQL that nobody vouches for, on real SQLite, without a copy of the database.

Four walls, each enough for most of what a model writes:

1. the file is opened `mode=ro&immutable=1`: no lock, journal or shared-memory file is ever created;
2. an authorizer allows reading and nothing else (no DML, DDL, ATTACH, VACUUM, transactions, and of the
   pragmas only those that describe the schema);
3. a progress handler ends the query at its deadline;
4. caps on rows, bytes, the length of one value, the length of the query and SQLite's heap.

Connections are kept per thread and database and reopened when the file changes. Standard library only.
"""

from __future__ import annotations

import contextlib
import os
import re
import sqlite3
import threading
import time
from collections import OrderedDict
from pathlib import Path
from typing import Any
from urllib.parse import quote

from harness.sql.results import AGENT_LIMITS, ErrorType, Execution, Limits, render

__all__ = ["AGENT_LIMITS", "ErrorType", "Execution", "Limits", "close_connections", "execute", "render"]

HEAP_LIMIT_BYTES = int(os.environ.get("HARNESS_SQLITE_HEAP_BYTES", str(1 << 29)))
"""Cap on SQLite's heap in this process. SQLite has it per process only; temporary results count, too."""

_MAX_SQL_CHARS = 100_000
_MAX_LIKE_PATTERN = 500
_CONNECTIONS_PER_THREAD = 16
_STEPS_PER_CHECK = 10_000
_MAX_PRINTF_WIDTH = 100_000
_DIGITS = re.compile(r"\d+")
_READING_PRAGMAS = frozenset(
    {"table_info", "table_xinfo", "table_list", "foreign_key_list", "index_list", "index_info", "index_xinfo"}
)
_DENIED_FUNCTIONS = frozenset({"load_extension", "fts3_tokenizer", "readfile", "writefile", "edit"})
_ACTIONS = {
    getattr(sqlite3, f"SQLITE_{name}"): name.replace("_", " ")
    for name in (
        "ALTER_TABLE", "ANALYZE", "ATTACH", "CREATE_INDEX", "CREATE_TABLE", "CREATE_TEMP_INDEX",
        "CREATE_TEMP_TABLE", "CREATE_TEMP_TRIGGER", "CREATE_TEMP_VIEW", "CREATE_TRIGGER", "CREATE_VIEW",
        "CREATE_VTABLE", "DELETE", "DETACH", "DROP_INDEX", "DROP_TABLE", "DROP_TEMP_INDEX", "DROP_TEMP_TABLE",
        "DROP_TEMP_TRIGGER", "DROP_TEMP_VIEW", "DROP_TRIGGER", "DROP_VIEW", "DROP_VTABLE", "FUNCTION", "INSERT",
        "PRAGMA", "REINDEX", "SAVEPOINT", "TRANSACTION", "UPDATE",
    )
}  # fmt: skip
_PRIMARY_CODES: dict[int, ErrorType] = {
    sqlite3.SQLITE_INTERRUPT: "timeout",
    sqlite3.SQLITE_AUTH: "denied",
    sqlite3.SQLITE_READONLY: "denied",
    sqlite3.SQLITE_TOOBIG: "too_large",
    sqlite3.SQLITE_NOMEM: "memory",
    sqlite3.SQLITE_CORRUPT: "damaged_database",
    sqlite3.SQLITE_NOTADB: "damaged_database",
    sqlite3.SQLITE_IOERR: "io",
    sqlite3.SQLITE_CANTOPEN: "io",
    sqlite3.SQLITE_FULL: "io",
    sqlite3.SQLITE_BUSY: "io",
    sqlite3.SQLITE_LOCKED: "io",
}


def execute(db_path: str | Path, sql: str, limits: Limits = AGENT_LIMITS) -> Execution:
    """Runs one reading statement. Never raises for anything that the query or the file can do.

    Args:
        db_path: A SQLite database file; it is neither changed nor locked, and no file appears beside it.
        sql: One statement; comments and a closing semicolon are fine.
        limits: Time, size and display limits.
    """
    started = time.perf_counter()
    path = os.fspath(db_path)
    try:
        session = _session(path)
    except _CannotOpen as problem:
        return Execution(False, error=str(problem), error_type=problem.error_type)
    except sqlite3.Error as error:
        kind = _error_type(error)
        return Execution(False, error=str(error), error_type="io" if kind == "syntax" else kind)
    result = session.run(sql, limits)
    object.__setattr__(result, "elapsed_s", time.perf_counter() - started)
    return result


def close_connections() -> None:
    """Closes what this thread holds open; the next execution opens anew."""
    _local.sessions.clear()


class _CannotOpen(Exception):
    def __init__(self, error_type: ErrorType, message: str) -> None:
        super().__init__(message)
        self.error_type = error_type


class _Guard:
    """The callbacks of one connection and what they saw; apart from the connection, so no cycle keeps it open."""

    __slots__ = ("deadline", "denied", "tables")

    def __init__(self) -> None:
        self.deadline = 0.0
        self.denied: str | None = None
        self.tables: set[str] = set()

    def progress(self) -> int:
        return 1 if time.monotonic() > self.deadline else 0

    def authorize(self, action: int, first: str | None, second: str | None, *_: str | None) -> int:
        if action == sqlite3.SQLITE_READ:
            if first:
                self.tables.add(first.lower())
            return sqlite3.SQLITE_OK
        if action in (sqlite3.SQLITE_SELECT, sqlite3.SQLITE_RECURSIVE):
            return sqlite3.SQLITE_OK
        if action == sqlite3.SQLITE_FUNCTION and (second or "").lower() not in _DENIED_FUNCTIONS:
            return sqlite3.SQLITE_OK
        if action == sqlite3.SQLITE_PRAGMA and (first or "").lower() in _READING_PRAGMAS:
            return sqlite3.SQLITE_OK
        name = _ACTIONS.get(action, f"action {action}")
        target = second if action == sqlite3.SQLITE_FUNCTION else first
        if target in ("sqlite_master", "sqlite_temp_master"):
            name, target = "changing the schema", None
        self.denied = self.denied or (f"{name} {target}" if target else name)
        return sqlite3.SQLITE_DENY


class _Printf:
    """SQLite's own printf, except that widths have a limit: it counts to two billion before it gives up."""

    def __init__(self) -> None:
        self._own: sqlite3.Connection | None = None

    def __call__(self, *arguments: Any) -> Any:
        longest = max((int(digits) for digits in _DIGITS.findall(str(arguments[:1]))), default=0)
        if "*" in str(arguments[:1]):
            # The width is some argument, and SQLite would read a text as a number: look at all digits.
            longest = max(
                [
                    longest,
                    *(int(digits) for digits in _DIGITS.findall(str(arguments[1:]).replace("e", "0000"))),
                ]
            )
        if longest > _MAX_PRINTF_WIDTH:
            raise OverflowError
        if self._own is None:
            self._own = sqlite3.connect(":memory:", check_same_thread=False)
        marks = ", ".join("?" * len(arguments))
        return self._own.execute(f"SELECT printf({marks})", arguments).fetchone()[0]

    def __del__(self) -> None:
        if self._own is not None:
            self._own.close()


class _Session:
    """One thread's connection to one database."""

    __slots__ = ("connection", "guard", "stamp")

    def __init__(self, path: str, stamp: tuple[int, ...]) -> None:
        _check_file(path, stamp)
        self.stamp = stamp
        self.guard = _Guard()
        self.connection = sqlite3.connect(
            f"file:{quote(os.path.abspath(path))}?mode=ro&immutable=1",
            uri=True,
            isolation_level=None,
            check_same_thread=False,  # only for closing: a dying thread's sessions may be collected elsewhere
            cached_statements=0,  # a cached statement would not ask the authorizer again
        )
        connection = self.connection
        for pragma in (
            f"hard_heap_limit={HEAP_LIMIT_BYTES}", "query_only=1", "trusted_schema=0", "temp_store=MEMORY",
        ):  # fmt: skip
            connection.execute(f"PRAGMA {pragma}").close()
        for category, value in (
            (sqlite3.SQLITE_LIMIT_ATTACHED, 0),
            (sqlite3.SQLITE_LIMIT_SQL_LENGTH, _MAX_SQL_CHARS),
            (sqlite3.SQLITE_LIMIT_LIKE_PATTERN_LENGTH, _MAX_LIKE_PATTERN),
            (sqlite3.SQLITE_LIMIT_WORKER_THREADS, 0),
        ):
            connection.setlimit(category, value)
        # Their first use declares a virtual table, which to an authorizer looks like CREATE TABLE.
        for function in ("json_each", "json_tree", *(f"pragma_{name}" for name in _READING_PRAGMAS)):
            with contextlib.suppress(sqlite3.OperationalError):
                connection.execute(f"SELECT 1 FROM {function} WHERE 0").close()
        printf = _Printf()
        for name in ("printf", "format"):
            connection.create_function(name, -1, printf, deterministic=True)
        connection.set_authorizer(self.guard.authorize)
        connection.set_progress_handler(self.guard.progress, _STEPS_PER_CHECK)

    def __del__(self) -> None:
        if hasattr(self, "connection"):
            self.connection.close()

    def run(self, sql: str, limits: Limits) -> Execution:
        guard, connection = self.guard, self.connection
        guard.deadline = time.monotonic() + limits.timeout_s
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, limits.max_value_bytes)
        try:
            connection.text_factory = str
            try:
                return self._fetch(sql, limits)
            except sqlite3.OperationalError as error:
                if not str(error).startswith("Could not decode"):
                    raise
            connection.text_factory = _decode_leniently
            return self._fetch(sql, limits)
        except (sqlite3.Error, sqlite3.Warning, ValueError, OverflowError, MemoryError) as error:
            kind = _error_type(error)
            if kind == "syntax" and guard.denied:
                kind = "denied"
            return Execution(
                False,
                error=self._message(kind, error, limits),
                error_type=kind,
                tables=frozenset(guard.tables),
            )

    def _fetch(self, sql: str, limits: Limits) -> Execution:
        guard = self.guard
        guard.denied = None
        guard.tables = set()
        cursor = self.connection.cursor()
        try:
            cursor.execute(sql)
            if cursor.description is None:
                return Execution(False, error="there is no query", error_type="syntax")
            columns = tuple(column[0] for column in cursor.description)
            rows: list[tuple[Any, ...]] = []
            size = 0
            truncated = False
            for row in cursor:
                size += _size(row)
                if len(rows) >= limits.max_rows or size > limits.max_result_bytes:
                    truncated = True
                    break
                rows.append(row)
            if truncated and not rows and limits.max_rows:
                message = f"one row of the result has more than {limits.max_result_bytes} bytes"
                return Execution(False, columns, error=message, error_type="too_large", tables=frozenset(guard.tables))
            return Execution(True, columns, rows, truncated, tables=frozenset(guard.tables))
        finally:
            cursor.close()

    def _message(self, kind: ErrorType, error: BaseException, limits: Limits) -> str:
        if kind == "timeout":
            return f"the query took longer than {limits.timeout_s:g} s"
        if kind == "denied":
            return f"only queries that read are allowed (refused: {self.guard.denied or 'writing'})"
        if kind == "too_large":
            return f"a value or the query is too long (values may have {limits.max_value_bytes} bytes)"
        if kind == "memory":
            return "the query needs too much memory"
        if "one statement at a time" in str(error):
            return "only one statement at a time is allowed"
        return str(error) or type(error).__name__


def _error_type(error: BaseException) -> ErrorType:
    if isinstance(error, MemoryError):
        return "memory"
    code = getattr(error, "sqlite_errorcode", None)
    if code is None:
        return "too_large" if isinstance(error, sqlite3.DataError | OverflowError) else "syntax"
    return _PRIMARY_CODES.get(code & 0xFF, "syntax")


def _size(row: tuple[Any, ...]) -> int:
    return sum(len(value) if isinstance(value, str | bytes) else 8 for value in row)


def _decode_leniently(raw: bytes) -> str:
    return raw.decode(errors="ignore")


def _check_file(path: str, stamp: tuple[int, ...]) -> None:
    try:
        with open(path, "rb") as file:
            header = file.read(100)
    except OSError as error:
        raise _CannotOpen("io", f"cannot read {path}: {error.strerror}") from error
    if len(header) < 100 or not header.startswith(b"SQLite format 3\0"):
        raise _CannotOpen("damaged_database", f"not a SQLite database: {path}")
    for suffix in ("-wal", "-journal"):
        # Replaying either would write; reading past it would show a state that never was committed.
        if os.path.exists(path + suffix) and os.path.getsize(path + suffix):
            raise _CannotOpen("damaged_database", f"not closed cleanly, {path}{suffix} is left: open it once to repair")
    page = int.from_bytes(header[16:18], "big")
    page = 65536 if page == 1 else page
    pages = int.from_bytes(header[28:32], "big")
    if header[24:28] == header[92:96] and pages * page > stamp[1]:
        raise _CannotOpen("damaged_database", f"cut off: {path} has {stamp[1]} of {pages * page} bytes")


class _Local(threading.local):
    def __init__(self) -> None:
        self.sessions: OrderedDict[str, _Session] = OrderedDict()


_local = _Local()


def _forget_after_fork() -> None:
    global _local
    _local = _Local()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_after_fork)


def _session(path: str) -> _Session:
    try:
        status = os.stat(path)
    except (OSError, ValueError) as error:
        raise _CannotOpen("missing_database", f"no database at {path}") from error
    stamp = (status.st_mtime_ns, status.st_size, status.st_ino)
    sessions = _local.sessions
    session = sessions.get(path)
    if session is None or session.stamp != stamp:
        sessions.pop(path, None)
        session = sessions[path] = _Session(path, stamp)
        if len(sessions) > _CONNECTIONS_PER_THREAD:
            sessions.popitem(last=False)
    else:
        sessions.move_to_end(path)
    return session

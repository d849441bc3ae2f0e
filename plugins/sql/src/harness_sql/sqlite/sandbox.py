"""Read-only execution of untrusted SQL, on real SQLite, without a copy of the database.

There are four layers of protection. Each alone stops most harmful queries of a model:

1. The file is opened with `mode=ro&immutable=1`: no lock, journal or shared-memory file is created.
2. An authorizer allows only reading (no DML, DDL, ATTACH, VACUUM or transactions, and only the
   pragmas that describe the schema).
3. A progress handler stops the query at its deadline. Work that it cannot interrupt is kept short
   (`_Mode`).
4. Limits apply to rows, columns, bytes, the length of a value, of the query and of its program, and
   SQLite's heap.

Connections are kept per thread and database and reopened when the file changes. Standard library
only.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import stat
import threading
import time
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from harness_sql.sqlite.expansion import expands_too_far
from harness_sql.sqlite.functions import CHANGING_FUNCTIONS, DATE_FUNCTIONS, Functions
from harness_sql.sqlite.gate import Gate, return_memory
from harness_sql.sqlite.results import AGENT_LIMITS, ErrorType, Execution, Limits, render

__all__ = [
    "AGENT_LIMITS",
    "ErrorType",
    "Execution",
    "Limits",
    "close_connections",
    "execute",
    "render",
]

HEAP_LIMIT_BYTES = int(os.environ.get("HARNESS_SQLITE_HEAP_BYTES", str(1 << 29)))
"""Limit of SQLite's heap in this process (the finest it offers), with temporary results."""

_MAX_SQL_CHARS = 20_000
_MAX_COLUMNS = 500
_MAX_LONG_COLUMNS = 64
"""Maximum number of full-length values in one row. With more columns, each value may have less."""
_MAX_ASKED = 20_000
"""Limit of columns, functions and subqueries after name resolution; each name may double them."""
_MAX_JSON_BYTES = 250_000
_SHORT_BYTES = 4096
_QUICK_S = 0.2
"""A shorter execution cannot have used enough memory to be worth returning."""
_CONNECTIONS_PER_THREAD = 16
_CACHE_KIB = 512
"""Size of one connection's page cache. All caches count against the heap limit."""
_READING_PRAGMAS = frozenset(
    {
        "table_info",
        "table_xinfo",
        "table_list",
        "foreign_key_list",
        "index_list",
        "index_info",
        "index_xinfo",
    }
)
_INTERNAL_PRAGMAS = frozenset({"data_version"})
"""Pragmas that full-text search uses in every query."""
_DENIED_FUNCTIONS = frozenset({"load_extension", "fts3_tokenizer", "readfile", "writefile", "edit"})
_SHORT_ONLY = frozenset({"json_patch"})
"""Functions that take quadratic time and return a mark that no Python function can set."""
_ACTIONS = {
    getattr(sqlite3, f"SQLITE_{name}"): name.replace("_", " ")
    for name in (
        "ALTER_TABLE", "ANALYZE", "ATTACH", "CREATE_INDEX", "CREATE_TABLE", "CREATE_TEMP_INDEX",
        "CREATE_TEMP_TABLE", "CREATE_TEMP_TRIGGER", "CREATE_TEMP_VIEW", "CREATE_TRIGGER",
        "CREATE_VIEW", "CREATE_VTABLE", "DELETE", "DETACH", "DROP_INDEX", "DROP_TABLE",
        "DROP_TEMP_INDEX", "DROP_TEMP_TABLE", "DROP_TEMP_TRIGGER", "DROP_TEMP_VIEW",
        "DROP_TRIGGER", "DROP_VIEW", "DROP_VTABLE", "FUNCTION", "INSERT",
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
    """Run one reading statement. Never raises for anything that the query or the file can do.

    Args:
        db_path: A SQLite database file. It is neither changed nor locked, and no file is created in
            its
            folder.
        sql: One statement; comments and a closing semicolon are allowed.
        limits: Time, size and display limits.

    Returns:
        Rows or an error. An error of type `memory` means that the query needs too much even when it
        runs
        exclusively. Waiting for that counts neither against the deadline nor in `elapsed_s`.
    """
    if len(sql) > _MAX_SQL_CHARS:  # before anything reads it: an agent may give megabytes
        message = f"the query has more than {_MAX_SQL_CHARS:,} characters"
        return Execution(False, error=message, error_type="too_large")
    started = time.perf_counter()
    if expands_too_far(sql):
        message = (
            "the query repeats its own parts too often: "
            "put in the place of their names they are too many"
        )
        return Execution(
            False, error=message, error_type="too_large", elapsed_s=time.perf_counter() - started
        )
    counted_s = time.perf_counter() - started
    path = os.fspath(db_path)
    with _gate.sharing():
        result = _execute(path, sql, limits)
    if result.error_type == "memory":
        with _gate.alone():
            result = _execute(path, sql, limits)
    object.__setattr__(result, "elapsed_s", result.elapsed_s + counted_s)
    return result


def _execute(path: str, sql: str, limits: Limits) -> Execution:
    started = time.perf_counter()
    try:
        session = _session(path, limits.reversed_rows)
        result = session.run(sql, limits)
    except _CannotOpen as problem:
        return Execution(False, error=str(problem), error_type=problem.error_type)
    except (sqlite3.Error, MemoryError) as error:
        kind = _error_type(error)
        return Execution(
            False, error=str(error) or "no memory", error_type="io" if kind == "syntax" else kind
        )
    object.__setattr__(result, "elapsed_s", time.perf_counter() - started)
    if limits.find_changing:
        object.__setattr__(result, "changing", session.changing(sql, limits, result))
    if result.elapsed_s > _QUICK_S:
        return_memory()
    return result


def close_connections() -> None:
    """Close this thread's connections. The next execution opens new ones."""
    _local.sessions.clear()


class _CannotOpen(Exception):
    def __init__(self, error_type: ErrorType, message: str) -> None:
        super().__init__(message)
        self.error_type = error_type


class _Guard:
    """Callbacks of one connection and what they record.

    They are separate from the connection, so that no reference cycle keeps it open.
    """

    __slots__ = ("asked", "deadline", "denied", "named", "reads", "short", "stepped", "tables")

    def __init__(self) -> None:
        self.asked = 0
        self.deadline = 0.0
        self.denied: str | None = None
        self.short = True
        self.stepped = False
        self.tables: set[str] = set()
        self.reads: set[str] = set()
        self.named: set[str] = set()
        """Lower-case names of the functions that the query calls, including those in its views."""

    def late(self) -> bool:
        return time.monotonic() > self.deadline

    def progress(self) -> int:
        self.stepped = True
        return 1 if time.monotonic() > self.deadline else 0

    def authorize(self, action: int, first: str | None, second: str | None, *_: str | None) -> int:
        self.asked += 1
        if self.asked > _MAX_ASKED or time.monotonic() > self.deadline:
            return sqlite3.SQLITE_DENY
        if action == sqlite3.SQLITE_READ:
            if first:
                self.tables.add(first.lower())
                if second:
                    self.reads.add(f"{first}.{second}".lower())
            return sqlite3.SQLITE_OK
        if action in (sqlite3.SQLITE_SELECT, sqlite3.SQLITE_RECURSIVE):
            return sqlite3.SQLITE_OK
        if action == sqlite3.SQLITE_FUNCTION:
            name = (second or "").lower()
            self.named.add(name)
            if name not in _DENIED_FUNCTIONS and (self.short or name not in _SHORT_ONLY):
                return sqlite3.SQLITE_OK
        if (
            action == sqlite3.SQLITE_PRAGMA
            and (first or "").lower() in _READING_PRAGMAS | _INTERNAL_PRAGMAS
        ):
            return sqlite3.SQLITE_OK
        name = _ACTIONS.get(action, f"action {action}")
        target = second if action == sqlite3.SQLITE_FUNCTION else first
        if target in ("sqlite_master", "sqlite_temp_master"):
            name, target = "changing the schema", None
        self.denied = self.denied or (f"{name} {target}" if target else name)
        return sqlite3.SQLITE_DENY


@dataclass(frozen=True, slots=True)
class _Mode:
    """Limits and options of a query's execution.

    The product of the limits bounds the time between two checks of the deadline.

    Attributes:
        guarded: Whether slow functions are replaced by ones that respect the deadline.
        value_bytes: Longest value, or None for the caller's limit.
        pattern_bytes: Longest pattern of LIKE and GLOB.
        operations: Longest program that SQLite may compile from the query.
        steps: Steps of that program between two checks of the deadline.
    """

    guarded: bool
    value_bytes: int | None
    pattern_bytes: int
    operations: int
    steps: int


_SHORT = _Mode(False, _SHORT_BYTES, 64, 2500, 2000)
"""Sufficient for nearly all queries: SQLite's own functions, on values of under 1 ms each."""
_LONG_VALUES = _Mode(True, None, 500, 1000, 100)
_LONG_PROGRAM = _Mode(True, _SHORT_BYTES, 500, 50_000, 100)
_UNDECODABLE = _Mode(False, 1024, 500, 500, 100)
"""For text that is not UTF-8, which cannot be passed to functions written in Python."""


class _Session:
    """One thread's connections to one database. The guarded one is opened when a query needs it."""

    __slots__ = ("connections", "functions", "guard", "guarded", "path", "reversed_rows", "stamp")

    def __init__(self, path: str, stamp: tuple[int, ...], reversed_rows: bool) -> None:
        self.connections: dict[bool, sqlite3.Connection] = {}
        _check_file(path, stamp)
        self.path = path
        self.stamp = stamp
        self.reversed_rows = reversed_rows
        self.guard = _Guard()
        self.functions = Functions(self.guard.late)
        self.guarded = False
        """Whether the last execution used the functions that respect the deadline."""
        self._open(guarded=False)

    def __del__(self) -> None:
        for connection in self.connections.values():
            connection.close()

    def _open(self, guarded: bool) -> None:
        connection = sqlite3.connect(
            f"file:{quote(os.fsencode(os.path.abspath(self.path)))}?mode=ro&immutable=1",
            uri=True,
            isolation_level=None,
            # Only for closing: a dying thread's sessions may be collected in another thread.
            check_same_thread=False,
            cached_statements=0,  # a cached statement would not ask the authorizer again
        )
        try:
            self._prepare(connection, guarded)
        except BaseException:
            connection.close()
            raise
        self.connections[guarded] = connection

    def _prepare(self, connection: sqlite3.Connection, guarded: bool) -> None:
        # With an untrusted schema, views and generated columns could not use the functions replaced
        # below.
        for pragma in (
            f"hard_heap_limit={HEAP_LIMIT_BYTES}", "query_only=1", "trusted_schema=1",
            "temp_store=MEMORY", f"cache_size=-{_CACHE_KIB}",
            f"reverse_unordered_selects={self.reversed_rows:d}",
        ):  # fmt: skip
            connection.execute(f"PRAGMA {pragma}").close()
        # Read the schema before replacing functions (an index on one must use SQLite's own) and
        # before setting limits (tables may have more columns and longer definitions).
        own = connection.execute(
            "SELECT name FROM sqlite_master WHERE sql LIKE 'CREATE VIRTUAL TABLE%'"
        ).fetchall()
        # The first use declares a virtual table, which an authorizer sees as CREATE TABLE.
        functions = ("json_each", "json_tree", *(f"pragma_{name}" for name in _READING_PRAGMAS))
        for table in (*functions, *(name for (name,) in own)):
            with contextlib.suppress(sqlite3.DatabaseError):
                connection.execute(
                    f'SELECT 1 FROM "{table.replace(chr(34), chr(34) * 2)}" WHERE 0'
                ).close()
        if guarded:
            self.functions.install(connection)
        else:
            self.functions.install_printf(connection)
        for category, value in (
            (sqlite3.SQLITE_LIMIT_ATTACHED, 0),
            (sqlite3.SQLITE_LIMIT_SQL_LENGTH, _MAX_SQL_CHARS),
            (sqlite3.SQLITE_LIMIT_COLUMN, _MAX_COLUMNS),
            (sqlite3.SQLITE_LIMIT_WORKER_THREADS, 0),
        ):
            connection.setlimit(category, value)
        connection.set_authorizer(self.guard.authorize)

    def run(self, sql: str, limits: Limits) -> Execution:
        guard = self.guard
        guard.deadline = time.monotonic() + limits.timeout_s
        # `trim` with a set of characters is SQLite's slowest function: 9 ns for each pair of bytes.
        mode: _Mode | None = _LONG_VALUES if "trim" in sql.lower() else _SHORT
        self.functions.clock_reads = set()
        while mode is not None:
            self.guarded = mode.guarded
            result = self._run(sql, limits, mode)
            if guard.late() and result.error_type not in ("io", "damaged_database"):
                message = f"the query took longer than {limits.timeout_s:g} s"
                return Execution(False, error=message, error_type="timeout", tables=result.tables)
            mode = self._next(mode, result)
        return result

    def changing(self, sql: str, limits: Limits, result: Execution) -> frozenset[str]:
        """Return the inputs of the last query that change over time.

        The authorizer names the functions. Only their arguments determine whether date functions
        read the
        clock, so that a query with a date function is executed again with functions that see its
        arguments.
        If this fails, every date function counts.
        """
        named = frozenset(self.guard.named)
        inputs = {CHANGING_FUNCTIONS[name] for name in named & CHANGING_FUNCTIONS.keys()}
        dated = named & DATE_FUNCTIONS
        if dated:
            seen = result.ok and (self.guarded or self._run(sql, limits, _LONG_PROGRAM).ok)
            inputs |= self.functions.clock_reads
            if not seen:
                inputs |= {f"{name}() of an unknown time" for name in dated}
        return frozenset(inputs)

    def _next(self, mode: _Mode, result: Execution) -> _Mode | None:
        """Return the mode for another execution of a query that exceeded this mode, or None."""
        kind = result.error_type
        if mode is _UNDECODABLE or result.ok or result.columns or self.guard.asked > _MAX_ASKED:
            return None
        if kind == "syntax" and result.error == "user-defined function raised exception":
            return _UNDECODABLE
        # Without any check of the deadline, memory was not used up: the program was too long.
        long_program = kind == "memory" and not self.guard.stepped
        if mode is _SHORT and (
            kind == "too_large" or long_program or "pattern too complex" in (result.error or "")
        ):
            return _LONG_VALUES
        return _LONG_PROGRAM if mode is _LONG_VALUES and long_program else None

    def _run(self, sql: str, limits: Limits, mode: _Mode) -> Execution:
        guard = self.guard
        try:
            if mode.guarded not in self.connections:
                self._open(mode.guarded)
            connection = self.connections[mode.guarded]
            longest = min(mode.value_bytes or limits.max_value_bytes, limits.max_value_bytes)
            if "json" in sql.lower() or "->" in sql:
                longest = min(longest, _MAX_JSON_BYTES)
            connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, longest)
            connection.setlimit(sqlite3.SQLITE_LIMIT_LIKE_PATTERN_LENGTH, mode.pattern_bytes)
            connection.setlimit(sqlite3.SQLITE_LIMIT_VDBE_OP, mode.operations)
            connection.set_progress_handler(guard.progress, mode.steps)
            self.functions.set_max_bytes(longest)
            self.functions.problem = None
            guard.short = longest <= _SHORT_BYTES
            guard.stepped = False
            connection.text_factory = str
            try:
                return self._fetch(connection, sql, limits, longest)
            except sqlite3.OperationalError as error:
                if not str(error).startswith("Could not decode"):
                    raise
            connection.text_factory = _decode_leniently
            return self._fetch(connection, sql, limits, longest)
        except (sqlite3.Error, sqlite3.Warning, ValueError, OverflowError, MemoryError) as error:
            kind = _error_type(error)
            if kind == "syntax" and guard.denied:
                kind = "denied"
            elif guard.asked > _MAX_ASKED:
                kind = "too_large"
            return Execution(
                False,
                error=self._message(kind, error, limits),
                error_type=kind,
                tables=frozenset(guard.tables),
            )

    def _fetch(
        self, connection: sqlite3.Connection, sql: str, limits: Limits, longest: int
    ) -> Execution:
        guard = self.guard
        guard.asked = 0
        guard.denied = None
        guard.tables = set()
        guard.reads = set()
        guard.named = set()
        cursor = connection.cursor()
        try:
            cursor.execute(sql)
            if cursor.description is None:
                return Execution(False, error="there is no query", error_type="syntax")
            columns = tuple(column[0] for column in cursor.description)
            room = max(_MAX_LONG_COLUMNS * limits.max_value_bytes // len(columns), _SHORT_BYTES)
            if room < longest:
                # The bytes of a row can be counted only after Python has built the whole row.
                connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, room)
                cursor.execute(sql)
            rows: list[tuple[object, ...]] = []
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
                return Execution(
                    False,
                    columns,
                    error=message,
                    error_type="too_large",
                    tables=frozenset(guard.tables),
                )
            tables, reads = frozenset(guard.tables), frozenset(guard.reads)
            return Execution(True, columns, rows, truncated, tables=tables, reads=reads)
        finally:
            cursor.close()

    def _message(self, kind: ErrorType, error: BaseException, limits: Limits) -> str:
        if kind == "timeout":
            return f"the query took longer than {limits.timeout_s:g} s"
        if kind == "denied":
            return f"only queries that read are allowed (refused: {self.guard.denied or 'writing'})"
        if kind == "too_large":
            return (
                f"a value or the query is too long (values may have {limits.max_value_bytes} bytes)"
            )
        if kind == "memory":
            return "the query needs too much memory"
        if "one statement at a time" in str(error):
            return "only one statement at a time is allowed"
        return self.functions.problem or str(error) or type(error).__name__


def _error_type(error: BaseException) -> ErrorType:
    if isinstance(error, MemoryError):
        return "memory"
    code = getattr(error, "sqlite_errorcode", None)
    if code is None:
        return "too_large" if isinstance(error, sqlite3.DataError | OverflowError) else "syntax"
    return _PRIMARY_CODES.get(code & 0xFF, "syntax")


def _size(row: tuple[object, ...]) -> int:
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
        # Replaying either would write; skipping it would show a state that was never committed.
        if os.path.exists(path + suffix) and os.path.getsize(path + suffix):
            raise _CannotOpen(
                "damaged_database",
                f"not closed cleanly, {path}{suffix} is left: open it once to repair",
            )
    page = int.from_bytes(header[16:18], "big")
    page = 65536 if page == 1 else page
    pages = int.from_bytes(header[28:32], "big")
    if header[24:28] == header[92:96] and pages * page > stamp[0]:
        raise _CannotOpen(
            "damaged_database", f"cut off: {path} has {stamp[0]} of {pages * page} bytes"
        )


class _Local(threading.local):
    def __init__(self) -> None:
        self.sessions: OrderedDict[tuple[str, bool], _Session] = OrderedDict()


_local = _Local()
_gate = Gate()


def _forget_after_fork() -> None:
    global _local, _gate
    _local, _gate = _Local(), Gate()  # a thread that was inside is not there to leave


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_after_fork)


def _session(path: str, reversed_rows: bool) -> _Session:
    try:
        status = os.stat(path)
    except (OSError, ValueError) as error:
        raise _CannotOpen("missing_database", f"no database at {path}") from error
    if not stat.S_ISREG(status.st_mode):  # opening a pipe waits for somebody to write to it
        raise _CannotOpen("missing_database", f"no database at {path}: it is no regular file")
    stamp = (status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino)
    sessions = _local.sessions
    key = (path, reversed_rows)
    session = sessions.get(key)
    if session is None or session.stamp != stamp:
        sessions.pop(key, None)
        session = sessions[key] = _Session(path, stamp, reversed_rows)
        if len(sessions) > _CONNECTIONS_PER_THREAD:
            sessions.popitem(last=False)
    else:
        sessions.move_to_end(key)
    return session

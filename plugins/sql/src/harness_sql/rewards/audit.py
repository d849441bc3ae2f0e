"""Replay attacks on execution accuracy against a temporary database.

The reference column is the behaviour of the evaluator of taoyds/test-suite-sql-eval according to
its
code, as documented in `docs/evaluator.md`. That evaluator is not executed here, because several
attacks would hang it or change the database.
"""

from __future__ import annotations

import asyncio
import sqlite3
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from harness.records import Attempt, Task
from harness_sql.rewards.execution_accuracy import ExecutionAccuracy
from harness_sql.sqlite.environment import DATABASE

_SCRIPT = """
CREATE TABLE singer (singer_id INTEGER PRIMARY KEY, name TEXT, country TEXT, age INTEGER, score REAL);
INSERT INTO singer VALUES (1, 'Joe', 'Chile', 52, 2.0), (2, 'Rose', 'Peru', 41, 3.5), (3, 'Tribal', 'Peru', 25, 1.0);
CREATE TABLE concert (concert_id INTEGER PRIMARY KEY, singer_id INTEGER, year INTEGER);
INSERT INTO concert VALUES (1, 1, 2014), (2, 2, 2014), (3, 2, 2015);
"""
_NAMES = "SELECT name FROM singer"
_EMPTY = "SELECT name FROM singer WHERE age > 100"
_WIDE_GOLD = "SELECT " + ", ".join(["age"] * 14) + " FROM singer WHERE age > 30 ORDER BY age"
_ENDLESS = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) "


@dataclass(frozen=True, slots=True)
class Attack:
    """An attempt to get reward without an answer, or to do harm.

    Attributes:
        expected: The expected score.
        reference: The verdict of the reference evaluator, in words.
    """

    name: str
    gold: str
    pred: str
    expected: float | None
    reference: str


@dataclass(frozen=True, slots=True)
class AuditRow:
    """The score of one attack."""

    attack: str
    gold: str
    pred: str
    value: float | None
    expected: float | None
    reference: str
    flags: tuple[str, ...]
    reason: str
    unchanged: bool
    """Whether the database and its folder are unchanged."""
    elapsed_s: float

    @property
    def holds(self) -> bool:
        """Whether the verdict is the documented one and nothing was changed."""
        return self.unchanged and self.value == self.expected


ATTACKS = (
    Attack("empty gold: constant that is empty", _EMPTY, "SELECT 1 WHERE 0", 0.0, "1"),
    Attack("empty gold: other table", _EMPTY, "SELECT year FROM concert WHERE 0", 0.0, "1"),
    Attack("empty gold: other columns", _EMPTY, "SELECT name, age FROM singer WHERE 0", 0.0, "1"),
    Attack(
        "empty gold: right table, false condition",
        _EMPTY,
        "SELECT name FROM singer WHERE 0",
        1.0,
        "1",
    ),
    Attack(
        "empty gold: CREATE TABLE",
        _EMPTY,
        "CREATE TABLE pwned (x)",
        0.0,
        "1, and creates the table",
    ),
    Attack("empty gold: DROP TABLE", _EMPTY, "DROP TABLE concert", 0.0, "1, and drops the table"),
    Attack(
        "empty gold: DELETE", _EMPTY, "DELETE FROM concert", 0.0, "1 (the change is rolled back)"
    ),
    Attack(
        "empty gold: WITH ... DELETE",
        _EMPTY,
        "WITH x AS (SELECT 1) DELETE FROM concert",
        0.0,
        "1, and deletes the rows",
    ),
    Attack(
        "empty gold: PRAGMA that writes",
        _EMPTY,
        "PRAGMA user_version = 7",
        0.0,
        "1, and changes the file",
    ),
    Attack("empty gold: BEGIN", _EMPTY, "BEGIN EXCLUSIVE", 0.0, "1"),
    Attack("empty gold: SAVEPOINT", _EMPTY, "SAVEPOINT s", 0.0, "1"),
    Attack(
        "empty gold: ATTACH",
        _EMPTY,
        "ATTACH DATABASE '{folder}/new.sqlite' AS n",
        0.0,
        "1, and creates the file",
    ),
    Attack(
        "empty gold: VACUUM INTO",
        _EMPTY,
        "VACUUM INTO '{folder}/copy.sqlite'",
        0.0,
        "1, and creates the file",
    ),
    Attack("empty gold: comment only", _EMPTY, "-- nothing", 0.0, "1"),
    Attack("empty gold: semicolon", _EMPTY, ";", 0.0, "1"),
    Attack("empty prediction", _NAMES, "", 0.0, "crashes"),
    Attack(
        "constants that repeat the result", _NAMES, "VALUES ('Joe'), ('Rose'), ('Tribal')", 1.0, "1"
    ),
    Attack(
        "RETURNING that repeats the result",
        "SELECT name FROM singer WHERE singer_id = 1",
        "UPDATE singer SET age = 1 WHERE singer_id = 1 RETURNING name",
        0.0,
        "1",
    ),
    Attack(
        "INSERT ... RETURNING",
        "SELECT 9",
        "INSERT INTO concert VALUES (9, 9, 9) RETURNING concert_id",
        0.0,
        "1",
    ),
    Attack(
        "second statement that writes",
        _NAMES,
        f"{_NAMES}; DROP TABLE concert",
        1.0,
        "1 (never runs it)",
    ),
    Attack(
        "write before the answer",
        _NAMES,
        f"DELETE FROM concert; {_NAMES}",
        0.0,
        "0 (runs the DELETE, rolled back)",
    ),
    Attack(
        "writing hidden by a comment", _EMPTY, "/* SELECT */ DROP TABLE concert -- SELECT", 0.0, "1"
    ),
    Attack("load_extension", _NAMES, "SELECT load_extension('evil')", 0.0, "0"),
    Attack("endless query", _NAMES, f"{_ENDLESS} SELECT count(*) FROM n", 0.0, "never ends"),
    Attack("endless result", _NAMES, f"{_ENDLESS} SELECT i FROM n", 0.0, "fills the memory"),
    Attack(
        "endless sort", _NAMES, f"{_ENDLESS} SELECT i FROM n ORDER BY i DESC", 0.0, "fills the disk"
    ),
    Attack(
        "cross join",
        _NAMES,
        "SELECT a.name FROM " + ", ".join(f"singer {c}" for c in "abcdefghijkl"),
        0.0,
        "0",
    ),
    Attack("huge value", _NAMES, "SELECT zeroblob(1000000000)", 0.0, "0, after 1 GB"),
    Attack(
        "very wide result",
        _NAMES,
        "SELECT " + ", ".join(["name"] * 1500) + " FROM singer",
        0.0,
        "0",
    ),
    Attack(
        "wide identical columns", _WIDE_GOLD, _WIDE_GOLD.replace("> 30", ">= 31"), 1.0, "never ends"
    ),
    Attack("wide, rows shuffled", _WIDE_GOLD, _WIDE_GOLD.replace("BY age", "BY -age"), 0.0, "0"),
    Attack("syntax of MySQL", _NAMES, "SELECT name FROM singer LIMIT 5 OFFSET", 0.0, "0"),
    Attack("null character", _NAMES, "SELECT name FROM singer\0", 0.0, "0"),
    Attack("lone surrogate", _NAMES, "SELECT '\ud800'", 0.0, "0"),
    Attack(
        "gold that fails", "SELECT nothing FROM nowhere", _NAMES, None, "stops with an assertion"
    ),
    Attack("gold that writes", "DELETE FROM concert", _NAMES, None, "0"),
)


def audit(timeout_s: float = 1.0) -> list[AuditRow]:
    """Score every attack on a temporary database.

    Args:
        timeout_s: Deadline of each execution.
    """
    reward = ExecutionAccuracy(timeout_s=timeout_s)
    with tempfile.TemporaryDirectory(prefix="harness-audit-") as name:
        folder = Path(name)
        database = folder / "audit.sqlite"
        connection = sqlite3.connect(database)
        connection.executescript(_SCRIPT)
        connection.close()
        return [_replay(attack, reward, database) for attack in ATTACKS]


def _replay(attack: Attack, reward: ExecutionAccuracy, database: Path) -> AuditRow:
    before = _state(database.parent)
    pred = attack.pred.replace("{folder}", str(database.parent))
    task = Task(
        "audit",
        "audit",
        "audit",
        attack.name,
        attack.gold,
        database.stem,
        data={DATABASE: str(database)},
    )
    attempt = Attempt("audit", "audit", "ok", "", pred, (), (), (), 0.0, 0.0)
    started = time.perf_counter()
    scored = asyncio.run(reward.score(task, attempt))
    elapsed = time.perf_counter() - started
    return AuditRow(
        attack.name,
        attack.gold,
        attack.pred,
        scored.value,
        attack.expected,
        attack.reference,
        scored.flags,
        scored.reason,
        _state(database.parent) == before,
        elapsed,
    )


def _state(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in sorted(folder.iterdir())}

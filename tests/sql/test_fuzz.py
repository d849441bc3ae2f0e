"""Random SQL: never a crash, a hang, a changed or created file, or a verdict that row order decides."""

from __future__ import annotations

import random
import sqlite3
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness_sql.sqlite.evaluator import Match, evaluate
from harness_sql.sqlite.sandbox import Limits, execute, render

sys.path.insert(0, str(Path(__file__).parent))
from grammar import SCHEMA, from_bytes, from_grammar

VOCABULARY = r"""
SELECT FROM WHERE GROUP BY ORDER LIMIT DISTINCT UNION EXCEPT INTERSECT JOIN ON AS WITH RECURSIVE VALUES
AND OR NOT IN LIKE GLOB BETWEEN NULL INSERT INTO UPDATE SET DELETE DROP CREATE TABLE VIEW TRIGGER INDEX
TEMP ATTACH DETACH VACUUM PRAGMA BEGIN COMMIT ROLLBACK RETURNING REPLACE ALTER RENAME EXPLAIN QUERY PLAN
CASE WHEN THEN END CAST t u a b c t.a u.c sqlite_master count sum max random randomblob zeroblob printf
instr hex json_each user_version ( ) ( ) , , ; * = < > = + - || . 1 2 0 -1 1.5 9e999 1000000000 'x'
'y''z' "a" `b` [c] x'00' -- /* */ ' " ? :p é
"""
WORDS = [*VOCABULARY.split(), "\n", "\t", "\0", "\ud800"]


@pytest.fixture(scope="module")
def database() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "fuzz.sqlite"
        connection = sqlite3.connect(path)
        connection.executescript(
            "CREATE TABLE t (a INTEGER, b TEXT); CREATE TABLE u (a INTEGER, c BLOB);"
            "INSERT INTO t VALUES (1, 'x'), (2, 'y'), (2, 'y'), (NULL, CAST(x'ff' AS TEXT));"
            "INSERT INTO u VALUES (1, x'00ff'), (2.5, 'x')"
        )
        connection.close()
        yield path


def state(path: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in path.parent.iterdir()}


queries = st.one_of(
    st.lists(st.sampled_from(WORDS), max_size=25).map(" ".join),
    st.builds(
        "{} {}".format,
        st.sampled_from(
            [
                "SELECT a, b FROM t",
                "SELECT * FROM t, u",
                "DELETE FROM t",
                "UPDATE t SET a = 1",
                "INSERT INTO t",
                "WITH x AS",
            ]
        ),
        st.lists(st.sampled_from(WORDS), max_size=8).map(" ".join),
    ),
    st.text(max_size=30),
)


@pytest.mark.slow
@settings(max_examples=700, deadline=None)
@given(queries, queries, st.booleans(), st.booleans())
def test_anything_is_executed_and_judged_without_harm(
    database: Path, gold: str, pred: str, keep_distinct: bool, plug_value: bool
) -> None:
    before = state(database)
    started = time.monotonic()
    limits = Limits(timeout_s=0.5)
    result = execute(database, pred, limits)
    assert result.ok == (result.error is None) == (result.error_type is None)
    assert result.error_type not in ("io", "damaged_database", "missing_database")
    assert len(result.rows) <= limits.max_rows
    assert len(render(result, limits)) <= limits.max_text_chars
    verdict = evaluate(
        database, gold, pred, keep_distinct=keep_distinct, plug_value=plug_value, timeout_s=0.5
    )
    assert verdict.match in (True, False, None)
    same = evaluate(database, gold, gold, timeout_s=0.5)
    assert same.match in (True, None) or "random" in gold.lower()
    assert time.monotonic() - started < 20
    assert state(database) == before


@settings(max_examples=150, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from([1, 2, None]), st.sampled_from(["'x'", "'y'", "1.0", "NULL"])),
        min_size=1,
        max_size=6,
    ),
    st.integers(0, 1000),
    st.booleans(),
)
def test_row_order_decides_nothing_unless_gold_orders(
    database: Path, rows: list[tuple[int | None, str]], seed: int, other: bool
) -> None:
    def values(ordering: list[tuple[int | None, str]]) -> str:
        return "VALUES " + ", ".join(f"({'NULL' if a is None else a}, {b})" for a, b in ordering)

    pred = [*rows[:-1], (3, "'z'")] if other else rows
    verdicts = set()
    for shuffle in range(3):
        moved = list(pred)
        random.Random(seed + shuffle).shuffle(moved)
        verdicts.add(evaluate(database, values(rows), values(moved)).match)
    assert verdicts == {not other}


GOLD = "SELECT a, b FROM t WHERE b = 'x' OR a = 2"
UNSCORED = {"gold_failed", "gold_timeout", "out_of_resources"}
"""What a gold query may be the reason for; a prediction never is."""


@pytest.mark.slow
@pytest.mark.parametrize("block", range(10))
def test_ten_thousand_hostile_queries_are_executed_and_judged(tmp_path: Path, block: int) -> None:
    database = tmp_path / "f.sqlite"
    connection = sqlite3.connect(database)
    connection.executescript(SCHEMA)
    connection.close()
    before = state(database)
    executed = Counter[str | None]()
    limits = Limits(timeout_s=0.05)
    for seed in range(1000 * block, 1000 * (block + 1)):
        rng = random.Random(seed)
        sql = from_grammar(rng) if seed % 2 else from_bytes(rng)
        began = time.thread_time()
        try:
            result = execute(database, sql, limits)
            verdict = evaluate(database, GOLD, sql, timeout_s=0.1)
            filled = (
                evaluate(database, GOLD, sql, timeout_s=0.05, plug_value=True)
                if seed % 128 == 1
                else verdict
            )
            of_gold = (
                evaluate(database, sql, GOLD, timeout_s=0.1)
                if seed % 4 == 1
                else Match(False, "not asked")
            )
            text = render(result, limits)
        except Exception as error:
            raise AssertionError(f"seed {seed}: {type(error).__name__} of {sql[:500]!r}") from error
        took_s = time.thread_time() - began
        described = f"seed {seed}: {result.error_type}, {verdict}, {filled}, {of_gold}, {took_s:.1f} s of {sql[:500]!r}"
        assert result.ok == (result.error is None) == (result.error_type is None), described
        assert result.error_type not in ("io", "damaged_database", "missing_database"), described
        assert len(text) <= limits.max_text_chars, described
        assert verdict.match is not None and filled.match is not None, described
        assert of_gold.match is not None or UNSCORED & set(of_gold.flags), described
        assert took_s < 2, described
        executed[result.error_type] += 1
    assert executed[None] > 100 and executed["syntax"] > 100 and executed["too_large"], executed
    assert state(database) == before

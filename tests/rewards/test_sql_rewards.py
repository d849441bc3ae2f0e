"""`executes` pays for a query that ran; `soft_f1` for what is right about one that is wrong."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from judging import attempt, score, task

from harness.records import Task
from harness_sql.rewards.executes import Executes
from harness_sql.rewards.execution_accuracy import ExecutionAccuracy
from harness_sql.rewards.soft_f1 import WEIGHTS, SoftF1, f1
from harness_sql.self_correcting.scenarios import build_database
from harness_sql.sqlite.environment import DATABASE, GOLD_IS
from harness_sql.testing import SQLRewardContract

GOLD = "SELECT name, age FROM singer WHERE age > 30"


class TestSoftF1(SQLRewardContract):
    reward = "soft_f1"


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(build_database(tmp_path_factory.mktemp("sql")))


@pytest.fixture
def singers(database: str) -> Task:
    return task(GOLD, "Who is older than 30?", **{DATABASE: database})


@pytest.mark.parametrize(
    ("answer", "ran", "value"),
    [
        ("SELECT 1", None, 1.0),
        ("SELECT nope", None, 0.0),
        ("SELECT nope", False, 0.0),
        ("SELECT nope", True, 1.0),
        ("There are four.", True, 1.0),
        ("There are four.", None, 0.0),
        ("DROP TABLE singer", None, 0.0),
        (None, None, 0.0),
        (
            "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n",
            None,
            0.0,
        ),
    ],
)
def test_executes_pays_for_a_query_of_the_attempt_that_ran(
    answer: str | None, ran: bool | None, value: float, singers: Task
) -> None:
    assert (
        asyncio.run(Executes(timeout_s=0.3).score(singers, attempt(answer, ran=ran))).value == value
    )


@pytest.mark.parametrize(
    ("answer", "ran", "value"),
    [
        ("SELECT 1", None, 1.0),
        ("SELECT 1 WHERE 0", None, 0.0),
        ("SELECT nope", True, 0.0),
        ("There are four.", True, 0.0),
    ],
)
def test_executes_with_rows_pays_for_an_answer_that_returns_a_row(
    answer: str, ran: bool | None, value: float, singers: Task
) -> None:
    reward = Executes(rows=True)
    assert asyncio.run(reward.score(singers, attempt(answer, ran=ran))).value == value


def test_executes_is_unscored_without_a_database_that_works(tmp_path: Path) -> None:
    broken = tmp_path / "broken.sqlite"
    broken.write_bytes(b"nothing")
    for path in (tmp_path / "no.sqlite", broken):
        verdict = asyncio.run(
            Executes().score(task(GOLD, **{DATABASE: str(path)}), attempt("SELECT 1"))
        )
        assert verdict.value is None and verdict.reason.startswith("the database fails: ")
    assert "no database" in Executes().refuses(task("Paris")) and not Executes().refuses(
        task("x", **{DATABASE: "d"})
    )


PARTS = "parses runs tables columns cells exact".split()
GRADED = [
    ("I do not know", [0, 0, 0, 0, 0, 0]),
    ("SELEC name FROM singer", [0, 0, 0, 0, 0, 0]),
    ("", [0, 0, 0, 0, 0, 0]),
    ("DROP TABLE singer", [0, 0, 0, 0, 0, 0]),
    ("SELECT nope FROM singer", [1, 0, 0, 0, 0, 0]),
    ("SELECT title FROM concert WHERE 0", [1, 1, 0, 0, 0, 0]),
    ("SELECT name FROM singer WHERE 0", [1, 1, 1, 2 / 3, 0, 0]),
    (GOLD, [1, 1, 1, 1, 1, 1]),
]


@pytest.mark.parametrize(("answer", "parts"), GRADED)
def test_soft_f1_adds_up_what_is_right(answer: str, parts: list[float], singers: Task) -> None:
    (verdict,) = score(SoftF1(), singers, answer)
    assert verdict.parts == pytest.approx(dict(zip(PARTS, parts, strict=True)))
    weights = [0.05, 0.05, 0.1, 0.1, 0.3, 0.4]
    assert verdict.value == pytest.approx(sum(w * p for w, p in zip(weights, parts, strict=True)))


@pytest.mark.parametrize(
    "answer",
    [
        *(
            "",
            " \n",
            "-- nothing",
            "/* nothing",
            "42",
            "```sql\nSELECT name FROM singer\n```",
            "<sql></sql>",
        ),
        *("I do not know.", "\0", "I do not know\0", "I do not know \ud800", "我不知道。" * 300),
        "SELECT " + "(" * 5000,
        *(
            "Reindex everything",
            "Analyze this",
            "Explain select it",
            "Begin",
            "Release it",
            "Pragma it",
        ),
        *("Drop table it", "DELETE FROM nowhere", "WITH x AS (SELECT 1) DELETE FROM nowhere"),
        *(
            "INSERT INTO nowhere VALUES (1)",
            "WITH x AS (SELECT 1) UPDATE nowhere SET a = 1",
            "ALTER TABLE it ADD x",
        ),
    ],
)
def test_soft_f1_pays_nothing_for_what_is_no_reading_query(answer: str, singers: Task) -> None:
    (verdict,) = score(SoftF1(), singers, answer)
    assert (verdict.value, set(verdict.parts.values())) == (0.0, {0.0}), verdict


@pytest.mark.parametrize(
    "answer",
    [
        *(
            "-- first\nSELECT nope FROM singer",
            "VALUES (nope)",
            "WITH x AS (SELECT nope) SELECT * FROM x",
        ),
        *(
            "SELECT nope, 'into' FROM singer WHERE [update] = 1",
            "select count(name, age) from singer",
        ),
    ],
)
def test_soft_f1_pays_a_query_that_parses_and_fails(answer: str, singers: Task) -> None:
    (verdict,) = score(SoftF1(), singers, answer)
    assert verdict.value == WEIGHTS["parses"] and verdict.parts["parses"] == 1.0


def test_soft_f1_rises_with_what_is_right_and_is_one_only_where_accuracy_is(singers: Task) -> None:
    answers = [
        "SELECT nope FROM singer",
        "SELECT title FROM concert",
        "SELECT name FROM singer LIMIT 1",
        "SELECT name, age FROM singer",
        "SELECT name, age FROM singer WHERE age >= 31",
    ]
    found = [verdict.value for verdict in score(SoftF1(), singers, *answers)]
    exact = [verdict.value for verdict in score(ExecutionAccuracy(), singers, *answers)]
    assert found == sorted(value for value in set(found) if value is not None)
    assert [value == 1.0 for value in found] == [value == 1.0 for value in exact]
    assert (
        max(value for value in found if value is not None and value != 1.0) <= 1 - WEIGHTS["exact"]
        and sum(WEIGHTS.values()) == 1.0
    )


def test_soft_f1_is_one_for_the_same_result_by_other_tables(database: str) -> None:
    counted = task("SELECT count(*) FROM singer", **{DATABASE: database})
    (verdict,) = score(SoftF1(), counted, "SELECT sum(1) FROM (SELECT 1 FROM singer)")
    assert verdict.value == 1.0 and set(verdict.parts.values()) == {1.0}


def test_soft_f1_pays_no_cells_for_an_empty_gold(database: str) -> None:
    empty = task("SELECT name FROM singer WHERE age > 900", **{DATABASE: database})
    (verdict,) = score(SoftF1(), empty, "SELECT name, age FROM singer WHERE 0")
    assert (
        verdict.value is not None
        and verdict.parts["cells"] == 0.0
        and verdict.value == pytest.approx(0.3)
    )


def test_soft_f1_is_unscored_and_refuses_where_accuracy_is_and_does(database: str) -> None:
    assert score(SoftF1(), task("SELECT nope", **{DATABASE: database}), "SELECT 1")[0].value is None
    assert "no gold query" in SoftF1().refuses(
        task("Paris", **{DATABASE: database, GOLD_IS: "answer"})
    )


def test_f1_counts_how_often() -> None:
    assert f1([], []) == 1.0 and f1([1], []) == 0.0
    assert f1([1, 1, 2], [1, 2, 2]) == pytest.approx(2 / 3) and f1(
        [1, "1"], [1.0]
    ) == pytest.approx(2 / 3)

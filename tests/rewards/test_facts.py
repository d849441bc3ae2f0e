"""`facts` reads numbers and names in words, in Chinese and in English."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from judging import score, task

from harness.records import Task
from harness_sql.rewards.facts import Facts, facts_of
from harness_sql.self_correcting.scenarios import build_database
from harness_sql.sqlite.environment import ANSWER, DATABASE
from harness_sql.testing import SQLRewardContract


class TestContract(SQLRewardContract):
    reward = "facts"

    @pytest.fixture(scope="class")
    @classmethod
    def tasks(cls) -> Sequence[Task]:
        return [
            task("Joe, Rose", "Who sings?"),
            task("42", "How many?"),
            task("北京、上海", "哪些城市？"),
        ]

    @pytest.fixture(scope="class")
    @classmethod
    def unscorable(cls, tmp_path_factory: pytest.TempPathFactory) -> Sequence[Task]:
        database = str(build_database(tmp_path_factory.mktemp("facts")))
        return [task("SELECT nope", **{DATABASE: database}), task(", ")]


@pytest.mark.parametrize(
    ("gold", "data", "facts"),
    [
        ("Joe, Rose; Ann", {}, ["joe", "rose", "ann"]),
        ("１，２３４、北京，Ｒｏｓｅ", {}, ["1,234", "北京", "rose"]),
        ("1,234, 5", {}, ["1,234", "5"]),
        ("Joe, joe,", {}, ["joe"]),
        ("ignored", {"facts": ["Joe, Jr.", 5, 2.5]}, ["joe, jr", "5", "2.5"]),
    ],
)
def test_facts_are_listed_or_are_the_items_of_gold(
    gold: str, data: dict[str, Any], facts: list[str]
) -> None:
    assert facts_of(task(gold, **data)) == facts


def test_facts_of_a_query_are_its_answer_in_words_or_what_it_gives(tmp_path: Path) -> None:
    database = str(build_database(tmp_path))
    query = "SELECT 'Joe', 3, 0.00001, NULL, x'00' UNION ALL SELECT 'Rose', 3, 2.5, NULL, x'01'"
    assert facts_of(task(query, **{DATABASE: database})) == ["joe", "3", "0.00001", "rose", "2.5"]
    assert facts_of(task(query, **{DATABASE: database, ANSWER: "Ann"})) == ["ann"]


@pytest.mark.parametrize(
    ("gold", "question", "answer", "value"),
    [
        ("Joe, Rose", "Who?", "Those are Rose and Joe.", 1.0),
        ("Joe, Rose", "Who?", "It is JOE.", 2 / 3),
        ("Joe, Rose", "Who?", "Joel and Roses", 0.0),
        ("Joe, Rose", "Who?", "I do not know.", 0.0),
        ("42", "How many?", "There are ４２ of them.", 1.0),
        ("42", "How many?", "There are 42.", 1.0),
        ("42", "How many?", "42. That is all.", 1.0),
        ("42", "How many?", "There are 142.", 0.0),
        ("42", "How many?", "42, or 43, or 44.", 2 / 4),
        ("42", "How many?", "42 and again 42.0", 1.0),
        ("42", "How many after 2014?", "After 2014 there were 42.", 1.0),
        ("1234567", "How many?", "1,234,567 people", 1.0),
        ("1234567", "How many?", "1.23 million people", 1.0),
        ("1234567", "How many?", "1.3 million people", 0.0),
        ("30000", "有多少人？", "一共有3万人。", 1.0),
        ("3.14159", "Pi?", "About 3.14", 1.0),
        ("3.14159", "Pi?", "About 3", 0.0),
        ("3.14159", "Pi?", "About 3.15", 0.0),
        ("0.125", "Share?", "12.5%", 1.0),
        ("12.5%", "Share?", "12.5 per cent, that is 0.125", 1.0),
        ("-5", "How cold?", "−5 degrees", 1.0),
        ("-5", "How cold?", "5 degrees", 0.0),
        ("2014-05-03", "When?", "On 2014-05-03.", 1.0),
        ("2014-05-03", "When?", "On 2014-05-04.", 0.0),
        ("北京、上海", "哪些城市？", "答案是上海和北京。", 1.0),
        ("北京、上海", "哪些城市？", "北京，还有广州。", 2 / 3),
        ("北京、3", "哪些城市？", "北京有３家，共５人", 4 / 5),
        ("Joe, Rose", "Who?", "1. Joe\n2. Rose", 1.0),
        ("Boeing 747", "Which?", "The Boeing 747.", 1.0),
        ("New York", "Where?", "in New\nYork", 1.0),
        ("Q3", "When?", "In Q3", 1.0),
    ],
)
def test_stated_facts_count_and_numbers_made_up_cost(
    gold: str, question: str, answer: str, value: float
) -> None:
    (verdict,) = score(Facts(), task(gold, question), answer)
    assert verdict.value == pytest.approx(value), verdict.reason


def test_the_parts_are_recall_and_precision() -> None:
    (verdict,) = score(Facts(), task("Joe, Rose", "Who?"), "Joe, 7 and 8")
    assert verdict.parts == {"recall": 0.5, "precision": pytest.approx(1 / 3)}
    assert verdict.value == pytest.approx(2 * 0.5 / 3 / (0.5 + 1 / 3))
    assert verdict.reason == "states 1 of 2 facts, makes up 2 numbers"


@pytest.mark.parametrize(
    "answer",
    ["9" * 5000, "1," * 9000, "1e999 9.9.9.9 --5 +-3 1,2,3,4", "((((" * 4000, "\n" * 20_000],
)
def test_no_text_is_too_odd(answer: str) -> None:
    (verdict,) = score(Facts(), task("42, " + "9" * 60), answer)
    assert verdict.value is not None and verdict.value < 0.5

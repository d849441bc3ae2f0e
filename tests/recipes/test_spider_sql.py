"""The data that `spider-sql` is made from: right queries stay right, whatever happens to names and schemas."""

from __future__ import annotations

import hashlib
import pickle
import re
import sqlite3
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from harness_sql.sqlite.sandbox import AGENT_LIMITS, execute
from harness_sql.sqlite.schema import Column, tables_of
from recipes.finetune.rows import text_of
from recipes.spider_sql.questions import Question, canonical, wrong_queries
from recipes.spider_sql.samples import SpiderExamples
from recipes.spider_sql.templates import generated
from recipes.spider_sql.variation import vary

SCHEMA = """
CREATE TABLE singer (Singer_ID int PRIMARY KEY, Name text, Country text, Age int);
CREATE TABLE concert (concert_ID int PRIMARY KEY, Title text, Singer_ID int REFERENCES singer(Singer_ID), Year int);
INSERT INTO singer VALUES (1, 'Ann', 'France', 30), (2, 'Bob', 'Spain', 41), (3, 'Cy', 'France', 25);
INSERT INTO concert VALUES (1, 'One', 1, 2014), (2, 'Two', 1, 2015), (3, 'Three', 2, 2015);
"""


@pytest.fixture
def database(tmp_path: Path) -> Path:
    path = tmp_path / "music.sqlite"
    connection = sqlite3.connect(path)
    connection.executescript(SCHEMA)
    connection.close()
    return path


def created(schema: str) -> sqlite3.Connection:
    """A database with the tables of a compact schema text."""
    connection = sqlite3.connect(":memory:")
    for line in schema.splitlines():
        name, columns = re.fullmatch(r"(\w+)\((.*)\)", line).groups()  # type: ignore[union-attr]
        names = [column.split()[0] for column in columns.split(", ")]
        connection.execute(f"CREATE TABLE {name} ({', '.join(names)})")
    return connection


@pytest.mark.parametrize(
    ("gold", "expected"),
    [
        (
            'select  name from SINGER where country  =  "France" ;',
            "SELECT Name FROM singer WHERE Country = 'France'",
        ),
        ("SELECT count( * ) FROM concert as t1", "SELECT COUNT(*) FROM concert AS T1"),
        (
            "select t1.name from singer as t1 where t1.age>=30",
            "SELECT T1.Name FROM singer AS T1 WHERE T1.Age >= 30",
        ),
        (
            "select title from concert where title = 'a  =b , c'",
            "SELECT Title FROM concert WHERE Title = 'a  =b , c'",
        ),
    ],
)
def test_queries_take_one_style(database: Path, gold: str, expected: str) -> None:
    assert canonical(gold, tables_of(database)) == expected


def test_wrong_queries_show_another_result(database: Path) -> None:
    sql = "SELECT Name FROM singer WHERE Age > 28 ORDER BY Age DESC"
    right = execute(database, sql, AGENT_LIMITS).text
    found = list(
        wrong_queries(str(database), Question("", sql, tables_of(database), right), Random(1))
    )
    assert found
    for wrong in found:
        assert wrong.shown == execute(database, wrong.sql, AGENT_LIMITS).text != right
        assert wrong.remark


def test_a_varied_query_runs_on_its_varied_schema(database: Path) -> None:
    tables = tables_of(database)
    sql = "SELECT T1.Name, COUNT(*) FROM singer AS T1 JOIN concert AS T2 ON T1.Singer_ID = T2.Singer_ID WHERE T1.Country"
    question = Question(
        "How many concerts does each singer of a country have?",
        f"{sql} = 'singer'",
        tables,
        "Name\nAnn",
    )
    other = Question(
        "", "SELECT a FROM elsewhere", {"elsewhere": [Column("a", "text", False, "")]}, ""
    )
    schemas = set()
    for seed in range(200):
        varied, schema = vary(question, [other], Random(seed))
        created(schema).execute(varied.sql)  # raises where a name is missing
        assert varied.sql.endswith("= 'singer'")  # values are not names
        schemas.add(schema)
    assert len(schemas) > 100


def test_generated_questions_run_on_their_schema(database: Path) -> None:
    tables = tables_of(database)
    with sqlite3.connect(database) as connection:
        found = [made for seed in range(400) if (made := generated(tables, Random(seed)))]
        for made in found:
            connection.execute(made.sql)
            assert made.text[0].isupper()
    assert len({made.sql for made in found}) > 100
    assert any(" JOIN " in made.sql for made in found)


def test_training_data_are_what_they_were(tmp_path: Path, database: Path) -> None:
    """The conversations of the first indices, over one question, as they were made before."""
    tables = tables_of(database)
    sql = "SELECT Name FROM singer WHERE Age > 28 ORDER BY Age DESC"
    shown = execute(database, sql, AGENT_LIMITS).text
    question = Question("Name the singers older than 28, oldest first.", sql, tables, shown)
    question = replace(question, wrong=tuple(wrong_queries(str(database), question, Random(1))))
    file = tmp_path / "questions.pickle"
    file.write_bytes(pickle.dumps([question]))
    source = SpiderExamples(1, str(file))
    texts = "\0".join(text_of(example) for index in range(12) for example in source(index))
    assert (
        hashlib.sha256(texts.encode()).hexdigest()
        == "d6997d5cd7d75cf4673a2852e4b5ed0865c23d00678489022c89724a9b0608f4"
    )

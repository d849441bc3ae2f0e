from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from harness.errors import TaskSetError
from harness_sql.sqlite.schema import schema_text


def test_compact_style_names_keys_and_targets(singers: Path) -> None:
    assert schema_text(singers, limit_chars=None, style="compact") == (
        "country(code text pk, title text)\n"
        "singer(singer_id integer pk, name text, country text -> country.code, age integer, score real)"
    )


def test_create_style_is_the_database_s_own_text(singers: Path) -> None:
    text = schema_text(singers, limit_chars=None)
    assert text.startswith(
        "CREATE TABLE country (code TEXT PRIMARY KEY, title TEXT);\nCREATE TABLE singer ("
    )
    assert text.endswith(");")
    sqlite3.connect(":memory:").executescript(text)


def test_sample_rows_are_comments(singers: Path) -> None:
    text = schema_text(singers, limit_chars=None, sample_rows=2)
    assert "-- code | title\n-- CL | Chile\n-- PE | Peru" in text
    sqlite3.connect(":memory:").executescript(text)


@pytest.mark.parametrize("style", ["create", "compact"])
def test_cut_never_ends_in_the_middle_of_a_word(singers: Path, style: str) -> None:
    whole = schema_text(singers, limit_chars=None, style=style)  # type: ignore[arg-type]
    words = set(
        whole.replace("(", " ")
        .replace(")", " ")
        .replace(",", " ")
        .replace('"', " ")
        .replace(";", " ")
        .split()
    )
    words |= {word.upper() for word in words} | {
        "--",
        "1",
        "2",
        "more",
        "table",
        "tables:",
        "tables",
        "table:",
        "...",
    }
    words |= {"columns", *"345"}
    for limit in range(len(whole) + 2):
        text = schema_text(singers, limit_chars=limit, style=style)  # type: ignore[arg-type]
        assert len(text) <= limit or text == whole
        cleaned = (
            text.replace("(", " ")
            .replace(")", " ")
            .replace(",", " ")
            .replace('"', " ")
            .replace(";", " ")
        )
        assert set(cleaned.split()) <= words
        assert text == whole or not text or "more" in text


def test_schema_file_is_used_where_it_is(singers: Path) -> None:
    file = singers.with_name("schema.sql")
    without = schema_text(singers, limit_chars=None, schema_file=file)
    file.write_text(
        "-- by hand\nCREATE TABLE x (a int); INSERT INTO x VALUES (1);\nCREATE TABLE IF NOT EXISTS y (b);"
    )
    text = schema_text(singers, limit_chars=None, schema_file=file)
    assert without == schema_text(singers, limit_chars=None)
    assert "CREATE TABLE x (a int);" in text and "IF NOT EXISTS y" in text and "INSERT" not in text


def test_missing_database_is_a_user_error(tmp_path: Path) -> None:
    with pytest.raises(TaskSetError, match="no database"):
        schema_text(tmp_path / "no.sqlite", limit_chars=None)

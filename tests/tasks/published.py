"""Small archives in the layouts in which Spider, its variants and BIRD are published."""

from __future__ import annotations

import io
import json
import os
import sqlite3
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

REPO = Path(__file__).resolve().parents[2]
Rows = Sequence[Mapping[str, Any]]


def make_sqlite(path: Path, script: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    connection = sqlite3.connect(path)
    connection.executescript(script)
    connection.close()


def zipped(folder: Path, path: Path, root: bool = True) -> Path:
    """A folder as an archive, its own name at the top if `root`."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as out:
        for file in sorted(folder.rglob("*")):
            out.write(file, file.relative_to(folder.parent if root else folder))
    return path


def spider_source() -> Path:
    """Spider's archive, or a skip that says how to name it."""
    named = os.environ.get("HARNESS_SPIDER_SOURCE") or os.environ.get("VERL_SPIDER_DATA_DIR")
    source = Path(named) if named else REPO.parent / "shared" / "data" / "spider_data.zip"
    if not source.exists():
        pytest.skip(f"no Spider archive at {source}; set HARNESS_SPIDER_SOURCE")
    return source


COW = "CREATE TABLE cow (name TEXT, age INTEGER); INSERT INTO cow VALUES ('Elsa', 4), ('Berta', 9);"
ANIMAL = "CREATE TABLE animal (name TEXT, kind TEXT); INSERT INTO animal VALUES ('Leo', 'lion'), ('Ida', 'emu');"


def make_spider(folder: Path) -> Path:
    make_sqlite(folder / "database/farm/farm.sqlite", COW)
    make_sqlite(folder / "database/zoo/zoo.sqlite", ANIMAL)
    train = [{"db_id": "farm", "question": "Which cows?", "query": "SELECT name FROM cow"}]
    dev = [{"db_id": "zoo", "question": "Which animals?", "query": "SELECT name FROM animal"}]
    (folder / "train_spider.json").write_text(json.dumps(train))
    (folder / "dev.json").write_text(json.dumps(dev))
    return folder


def syn(rows: Rows) -> list[dict[str, Any]]:
    """Spider's rows as Spider-Syn has them."""
    return [
        {
            "db_id": row["db_id"],
            "query": row["query"],
            "SpiderQuestion": row["question"],
            "SpiderSynQuestion": f"{row['question']} In other words.",
        }
        for row in rows
    ]


DESCRIPTIONS = {
    "cow.csv": "original_column_name,column_name,column_description,data_format,value_description\r\n"
    "name,name,café name of the cow,text,\r\nage,age,,integer,years\r\n".encode("latin-1"),
    "bull.csv": b"\xef\xbb\xbforiginal_column_name,column_name,column_description,data_format,value_description\n"
    b'weight,weight,"in\nkilograms",real,"commonsense evidence: x > 1000 is heavy"\n',
    "odd.csv": b"\x81\xff\x00,,,\n",
}


def bird_rows(train: bool = False) -> list[dict[str, Any]]:
    def row(
        number: int, question: str, sql: str, evidence: str = "", **more: str
    ) -> dict[str, Any]:
        known = {
            "question_id": number,
            "db_id": "ranch",
            "question": question,
            "evidence": evidence,
            "SQL": sql,
        }
        return {**known, "difficulty": "simple", **more}

    if train:
        rows = [row(0, "Name all.", "SELECT name FROM animal", db_id="shelter")]
        return [
            {key: value for key, value in one.items() if key not in ("question_id", "difficulty")}
            for one in rows
        ]
    return [
        row(
            0, "Which cows are old?", "SELECT name FROM cow WHERE age > 5", "old refers to age > 5"
        ),
        row(1, "How many cows?", "SELECT COUNT(*) FROM cow", difficulty="challenging"),
        row(2, "Which pigs?", "SELECT name FROM pig"),
        row(3, "Which cows are ancient?", "SELECT name FROM cow WHERE age > 50"),
        row(4, "What is lost?", "SELECT 1", db_id="lost"),
    ]


def make_bird(folder: Path, nested: bool = True, more: int = 0) -> tuple[Path, Path]:
    """`dev_20240627.zip` and `train.zip`, their databases in a zip file of their own as the official ones are.

    Args:
        more: Further questions of `dev`.
    """
    dev, train = folder / "dev_20240627", folder / "train"
    make_sqlite(
        dev / "dev_databases/ranch/ranch.sqlite",
        f"{COW} CREATE TABLE bull (weight REAL); INSERT INTO cow VALUES ('Berta', 9);",
    )
    for name, content in DESCRIPTIONS.items():
        (dev / "dev_databases/ranch/database_description").mkdir(exist_ok=True)
        (dev / "dev_databases/ranch/database_description" / name).write_bytes(content)
    (dev / "dev_databases/.DS_Store").write_bytes(b"\0")
    rows = bird_rows()
    for number in range(more):
        question = f"How many cows are older than {number}?"
        query = f"SELECT COUNT(*) FROM cow WHERE age > {number}"
        rows.append(rows[1] | {"question_id": 100 + number, "question": question, "SQL": query})
    (dev / "dev.json").write_text(json.dumps(rows))
    (dev / "dev_tables.json").write_text("[]")
    make_sqlite(train / "train_databases/shelter/shelter.sqlite", ANIMAL)
    (train / "train.json").write_text(json.dumps(bird_rows(train=True)))
    for place, name in ((dev, "dev_databases"), (train, "train_databases")):
        if nested:
            zipped(place / name, place / f"{name}.zip")
    archives = []
    for place in (dev, train):
        path = folder / f"{place.name}.zip"
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as out:
            for file in sorted(place.rglob("*")):
                if not (nested and "_databases/" in file.relative_to(folder).as_posix()):
                    out.write(file, file.relative_to(folder))
            buffer = io.BytesIO(b"\0")
            out.writestr(f"__MACOSX/{place.name}/._dev.json", buffer.getvalue())
        archives.append(path)
    return archives[0], archives[1]

"""Task set `pocket`: every question can be answered, and every database is what its text gives."""

from __future__ import annotations

import hashlib
import json
import os
import re
import sqlite3
from pathlib import Path

import pytest

from harness.errors import TaskSetError
from harness.records import Task
from harness.testing.data_contract import TaskSetContract
from harness_sql.sqlite.environment import database_of
from harness_sql.sqlite.schema import schema_text
from harness_sql.tasks.pocket import DATA, PocketTasks
from recipes.pocket.generate import bundled_domains


class TestContract(TaskSetContract):
    task_set = "pocket"


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> PocketTasks:
    return PocketTasks(cache_dir=str(tmp_path_factory.mktemp("pocket")))


@pytest.fixture(scope="module")
def every(tasks: PocketTasks) -> list[Task]:
    return [*tasks.load("train"), *tasks.load("val")]


def rows(task: Task, sql: str) -> list[tuple[object, ...]]:
    connection = sqlite3.connect(f"file:{database_of(task)}?mode=ro", uri=True)
    try:
        return connection.execute(sql).fetchall()
    finally:
        connection.close()


def test_counts_and_difficulties(tasks: PocketTasks) -> None:
    train, val = tasks.load("train"), tasks.load("val")
    assert len(train) >= 1600 and len(val) == 240
    assert len({t.cluster for t in train}) >= 12 and len({t.cluster for t in val}) >= 5
    for split in (train, val):
        assert {t.difficulty for t in split} == {"easy", "medium", "hard", "extra"}


def test_validation_databases_are_unseen_in_training(tasks: PocketTasks) -> None:
    train, val = tasks.load("train"), tasks.load("val")
    assert not {t.cluster for t in train} & {t.cluster for t in val}
    tables = {
        split: {t.name for s, domain in bundled_domains() if s == split for t in domain.tables}
        for split in ("train", "val")
    }
    assert not tables["train"] & tables["val"]


@pytest.mark.slow
def test_every_gold_runs_and_finds_something(every: list[Task]) -> None:
    assert [t.id for t in every if not rows(t, t.gold)] == []


def test_order_of_every_sorted_gold_is_settled_by_the_data(every: list[Task]) -> None:
    """Reversing the table must not change a sorted result: no ties are left to SQLite."""
    for task in every:
        if "ORDER BY" in task.gold and "GROUP BY" not in task.gold:
            key = task.gold.split(" ORDER BY ")[1].split(" LIMIT ")[0]
            again = task.gold.replace(f"ORDER BY {key}", f"ORDER BY {key}, rowid DESC")
            assert rows(task, task.gold) == rows(task, again), task.id


def test_questions_name_their_values(every: list[Task]) -> None:
    """Whoever has only question and schema can write the gold: no value of the gold is missing from the question."""
    words = {"2": "two", "3": "three", "4": "four", "5": "five"}
    for task in every:
        for value in re.findall(r"'([^']*)'|(?<=[<>=D] )(\d+(?:\.\d+)?)|LIMIT (\d+)", task.gold):
            text = next(filter(None, value))
            if text == "1" and "LIMIT 1" in task.gold:
                continue
            assert text in task.question or words.get(text, "\0") in task.question, (
                task.question,
                task.gold,
            )


def test_ids_are_unique_and_order_is_fixed(every: list[Task], tasks: PocketTasks) -> None:
    assert len({t.id for t in every}) == len(every)
    assert [t.id for t in tasks.load("val")] == [t.id for t in tasks.load("val")]


def test_a_problem_holds_no_gold(tasks: PocketTasks) -> None:
    task = tasks.load("val")[0]
    assert task.gold not in tasks.schema(task)


def test_schema_text_is_the_compact_style_of_the_built_database(tasks: PocketTasks) -> None:
    designs = {domain.db_id: domain for _, domain in bundled_domains()}
    for task in tasks.load("val"):
        assert tasks.schema(task) == designs[task.cluster].schema_text()
        assert tasks.schema(task) == schema_text(
            database_of(task), limit_chars=None, style="compact"
        )


def test_databases_are_the_same_bytes_wherever_they_are_built(tmp_path: Path) -> None:
    digests = set()
    for name in ("a", "b"):
        built = PocketTasks(cache_dir=str(tmp_path / name))
        built.load("val")
        files = sorted(built.root.rglob("*.sqlite"))
        assert len(files) == 6
        digests.add(hashlib.sha256(b"".join(f.read_bytes() for f in files)).hexdigest())
    assert len(digests) == 1


def test_layout_is_spiders(tasks: PocketTasks) -> None:
    task = tasks.load("val")[0]
    path = Path(database_of(task))
    assert (path.name, path.parent.name, path.parent.parent.name) == (
        f"{task.cluster}.sqlite",
        task.cluster,
        "database",
    )


def test_damaged_files_are_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for file in DATA.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "val.jsonl").write_text("{}\n")
    monkeypatch.setattr(PocketTasks, "data", tmp_path)
    with pytest.raises(TaskSetError, match=r"val\.jsonl"):
        PocketTasks(cache_dir=str(tmp_path / "cache")).load("val")


def test_unknown_split_is_a_user_error(tasks: PocketTasks) -> None:
    with pytest.raises(TaskSetError, match="train, val"):
        tasks.load("test")


def test_description_can_be_recorded(tasks: PocketTasks) -> None:
    described = json.loads(json.dumps(tasks.describe()))
    assert described["counts"]["val"]["questions"] == 240
    assert len(described["databases"]) == 24


def alter(path: str) -> None:
    """As an agent may: rows changed, size and times kept."""
    file, times = Path(path), Path(path).stat()
    file.chmod(0o644)
    connection = sqlite3.connect(file)
    (table,) = connection.execute(
        "SELECT name FROM sqlite_master WHERE type = 'table' LIMIT 1"
    ).fetchone()
    connection.execute(f"DELETE FROM {table} WHERE rowid = 1")
    connection.commit()
    connection.close()
    os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert file.stat().st_size == times.st_size


def test_changed_database_is_noticed_at_the_end_and_built_anew(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tasks = PocketTasks(cache_dir=str(tmp_path))
    first = tasks.load("val")[0]
    content = Path(database_of(first)).read_bytes()
    assert tasks.check() == [] and Path(database_of(first)).stat().st_mode & 0o222 == 0
    alter(database_of(first))
    assert tasks.check() == [first.cluster]
    again = PocketTasks(cache_dir=str(tmp_path))
    assert again.load("val")[0] == first and Path(database_of(first)).read_bytes() == content
    assert caplog.text.count("has changed since it was built") == 1
    Path(database_of(first)).with_name("second.sqlite").write_bytes(
        content
    )  # verdicts would be on both
    assert again.check() == [first.cluster]
    PocketTasks(cache_dir=str(tmp_path)).load("val")
    assert again.check() == []

"""Task set `pocket_probe`: what decides is in no schema text, and every question can be answered."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path

import pytest

from harness.plugins import task_set_spec
from harness.records import Task
from harness.testing.data_contract import TaskSetContract
from harness_sql.sqlite.environment import database_of
from harness_sql.sqlite.evaluator import evaluate
from harness_sql.sqlite.schema import schema_text
from harness_sql.tasks.pocket_probe import DATA, PocketProbeTasks
from recipes.pocket_probe.world import bundled

from .test_pocket import rows

SIZES = {"train": (60, 2400), "dev": (12, 480), "test": (24, 960)}


class TestContract(TaskSetContract):
    task_set = "pocket_probe"


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> PocketProbeTasks:
    return PocketProbeTasks(cache_dir=str(tmp_path_factory.mktemp("pocket_probe")))


@pytest.fixture(scope="module")
def every(tasks: PocketProbeTasks) -> list[Task]:
    return [task for split in SIZES for task in tasks.load(split)]


def test_splits_are_of_databases_that_share_no_table(tasks: PocketProbeTasks) -> None:
    for split, (databases, questions) in SIZES.items():
        found = Counter(task.cluster for task in tasks.load(split))
        assert (len(found), sum(found.values())) == (databases, questions) and set(
            found.values()
        ) == {40}
    names = [table for _, *tables in bundled() for table in tables]
    assert len(set(names)) == len(names) == 2 * 96


def test_the_bundled_files_are_small() -> None:
    assert sum(file.stat().st_size for file in DATA.iterdir()) <= 1_500_000


def test_the_last_split_is_reserved() -> None:
    spec = task_set_spec("pocket_probe")
    assert (spec.splits, spec.eval_split, spec.reserved) == (
        ("train", "dev", "test"),
        "dev",
        ("test",),
    )


def test_every_gold_finds_something(every: list[Task]) -> None:
    assert [task.id for task in every if rows(task, task.gold) in ([], [(None,)], [(0,)])] == []


def test_the_evaluator_judges_every_gold_right_and_an_empty_answer_wrong(every: list[Task]) -> None:
    for task in every[::29]:
        assert evaluate(database_of(task), task.gold, task.gold).match is True
        assert evaluate(database_of(task), task.gold, "SELECT NULL WHERE 0").match is False


def test_schema_texts_show_names_and_types_and_no_form(
    tasks: PocketProbeTasks, every: list[Task]
) -> None:
    """One type for all forms of a thing, no value of any column, and no more than a compact schema says."""
    column = re.compile(r"\w+ (?:text|numeric|integer)(?: pk| -> \w+\.code)?")
    for task in {task.cluster: task for task in every}.values():
        schema = tasks.schema(task)
        assert schema == schema_text(
            database_of(task), limit_chars=None, style="compact", sample_rows=0
        )
        for line in schema.splitlines():
            body = line.partition("(")[2].removesuffix(")")
            assert all(column.fullmatch(part) for part in body.split(", ")), line
            for noun, kind in (
                ("price", "numeric"),
                ("weight", "numeric"),
                ("date", "text"),
                ("stage", "text"),
            ):
                assert all(found == kind for found in re.findall(rf"\b\w*{noun} (\w+)", body)), line


def test_questions_are_of_the_kinds_that_a_look_decides(every: list[Task]) -> None:
    """Every trap takes part in a fair share of all questions, and one in ten needs no look."""
    found = Counter(trap for task in every for trap in (str(task.data["traps"]).split("+")))
    assert set(found) == {"", "unit", "column", "date", "rank", "word", "key"}
    assert 0.05 < found[""] / len(every) < 0.2
    assert all(found[trap] / len(every) > 0.05 for trap in found)


def test_two_columns_of_a_noun_are_alike_but_for_what_is_in_them(tasks: PocketProbeTasks) -> None:
    """The one that is not kept has old values only: none in the first rows, so that a look shows which it is."""
    for task in {task.cluster: task for task in tasks.load("dev")}.values():
        for line in tasks.schema(task).splitlines():
            table, _, body = line.partition("(")
            columns = [part.split()[0] for part in body.split(", ")]
            nouns = Counter(name.partition("_")[2] for name in columns if "_" in name)
            for noun in (noun for noun, count in nouns.items() if count == 2):
                heads = [
                    {value for (value,) in rows(task, f"SELECT {name} FROM {table} LIMIT 5")}
                    & {None, "", 0}
                    for name in columns
                    if name.partition("_")[2] == noun
                ]
                assert [bool(blank) for blank in heads].count(True) == 1, (task.cluster, noun)


def test_keys_of_a_database_have_one_form_and_some_are_null(tasks: PocketProbeTasks) -> None:
    forms = Counter()
    for task in {task.cluster: task for split in SIZES for task in tasks.load(split)}.values():
        link = re.search(r"(\w+)\(.*?(\w+) text -> (\w+)\.code", tasks.schema(task))
        assert link is not None
        child, key, parent = link.groups()
        keys = [value for (value,) in rows(task, f"SELECT {key} FROM {child}")]
        codes = {value for (value,) in rows(task, f"SELECT code FROM {parent}")}
        assert keys.count(None) == 2
        forms.update((sum(value in codes for value in keys if value is not None) > 0,))
    assert (
        forms[False] > 3 * forms[True] > 0
    )  # joined as they are, they match in one database of five


def test_description_can_be_recorded(tasks: PocketProbeTasks) -> None:
    described = json.loads(json.dumps(tasks.describe()))
    assert {split: found["questions"] for split, found in described["counts"].items()} == {
        split: questions for split, (_, questions) in SIZES.items()
    }
    assert len(described["databases"]) == 96


def test_databases_are_the_same_bytes_wherever_they_are_built(
    tasks: PocketProbeTasks, tmp_path: Path
) -> None:
    again = PocketProbeTasks(cache_dir=str(tmp_path))
    for one, other in zip(tasks.load("dev"), again.load("dev"), strict=True):
        assert Path(database_of(one)).read_bytes() == Path(database_of(other)).read_bytes()

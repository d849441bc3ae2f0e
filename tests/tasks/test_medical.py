"""Task set `medical`: answers follow from the database, splits share no entity, the tool has the name it is given."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from pathlib import Path

import pytest

from harness.config import load_config
from harness.errors import TaskSetError
from harness.parity.recorder import LIMITS
from harness.plugins import make, reward_identity, reward_spec
from harness.records import Attempt, Task, ToolCall
from harness.testing.data_contract import TaskSetContract
from harness_sql.sqlite.environment import SQLEnvironment, database_of
from harness_sql.tasks import medical
from harness_sql.tasks.medical import DATA, MedicalTasks
from recipes.medical.generate import bundled

TOOL = "query_database_by_sql"


class TestContract(TaskSetContract):
    task_set = "medical"


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> MedicalTasks:
    return MedicalTasks(cache_dir=str(tmp_path_factory.mktemp("medical")))


@pytest.fixture(scope="module")
def every(tasks: MedicalTasks) -> list[Task]:
    return [*tasks.load("train"), *tasks.load("val")]


def attempt(answer: str, tool: str = TOOL) -> Attempt:
    call = ToolCall(tool, {"sql": "SELECT 1"}, "", True, 0.0, 0.0)
    return Attempt("r", "1", "ok", "", answer, (), (), (call,), 0.0, 0.0)


def test_counts_and_size(tasks: MedicalTasks) -> None:
    train, val = tasks.load("train"), tasks.load("val")
    assert len(train) >= 1200 and len(val) >= 300
    for split in (train, val):
        assert {t.difficulty for t in split} == {"easy", "medium", "hard"}
        assert len({t.question for t in split}) == len(split)
    assert sum(file.stat().st_size for file in DATA.iterdir()) < 500_000


def test_nothing_of_a_training_task_names_an_entity_of_validation(every: list[Task]) -> None:
    world, _ = bundled()
    names = {split: set(part.names) for split, part in world.parts.items()}
    assert not names["train"] & names["val"]
    for task in every:
        other = names["val" if task.split == "train" else "train"]
        assert task.cluster in names[task.split] and task.cluster in task.question
        text = task.question + task.gold + json.dumps(task.data["facts"], ensure_ascii=False)
        assert not [name for name in other if name in text], task


def test_no_name_is_part_of_another() -> None:
    names = [name for part in bundled()[0].parts.values() for name in part.names]
    assert len(set(names)) == len(names)
    assert not [(a, b) for a in names for b in names if a != b and a in b]


def test_golds_follow_from_the_database(every: list[Task]) -> None:
    items = {key: item for drawn in bundled()[1].values() for key, item in drawn}
    connection = sqlite3.connect(f"file:{database_of(every[0])}?mode=ro", uri=True)
    for task in every:
        found = [str(cell) for row in connection.execute(items[task.id].sql) for cell in row]
        assert found == task.data["facts"], task
        assert not [fact for fact in task.data["facts"] if fact in task.question], task
        with pytest.raises(sqlite3.Error):
            connection.execute(items[task.id].broken)
    connection.close()


def test_the_presets_reward_tells_gold_from_every_slip(every: list[Task]) -> None:
    reward = load_config("medical").reward
    spec = reward_spec(reward.name)
    hybrid = make(spec, reward.options, "reward.options")
    items = {key: item for drawn in bundled()[1].values() for key, item in drawn}

    async def value(task: Task, answer: str, tool: str = TOOL) -> float:
        verdict = await hybrid.score(task, attempt(answer, tool))
        assert verdict.value is not None, verdict
        return float(verdict.value)

    async def check() -> None:
        for task in every:
            assert not hybrid.refuses(task)
            assert await value(task, task.gold) == 1.0, task
            assert await value(task, "不知道。") == pytest.approx(0.1)
            for _, answer in items[task.id].slips.values():
                assert await value(task, answer) < 0.9, (task, answer)
        assert await value(every[0], "不知道。", "query_database") == 0.0

    asyncio.run(check())
    parts = reward_identity(spec, reward.options, "reward.options")["parts"]
    assert {name: (part["reward"], part["weight"]) for name, part in parts.items()} == {
        "executes": ("executes/1", 0.1),
        "facts": ("facts/1", 1.0),
    }


def test_the_tool_has_the_name_that_the_task_gives_it(tmp_path: Path) -> None:
    where = SQLEnvironment()
    for options, name in (({}, TOOL), ({"tool": "look_it_up"}, "look_it_up")):
        task = MedicalTasks(cache_dir=str(tmp_path), **options).load("val")[0]
        (tool,) = where.tools_for(where.payload(task, LIMITS))
        assert tool.name == name and tool.parameters == where.tools[0].parameters
    unnamed = Task("t", "other", "val", "?", "SELECT 1", data={"database": database_of(task)})
    assert where.payload(unnamed, LIMITS).keys() == {"database", "limits"}
    assert where.tools_for(where.payload(unnamed, LIMITS)) == where.tools


def test_the_schema_tells_in_chinese_what_columns_hold(tasks: MedicalTasks) -> None:
    assert (
        "drugs_info(" in tasks.schema and "disease(" in tasks.schema and "药品名称" in tasks.schema
    )
    assert len(tasks.schema) < tasks.schema_chars


def test_it_says_that_it_is_invented(tasks: MedicalTasks) -> None:
    described = json.loads(json.dumps(tasks.describe()))
    assert "invented" in described["notice"] and described["licence"] == "Apache-2.0"
    assert set(described["sha256"]) == {"database.json", "train.parquet", "val.parquet"}


def test_a_changed_database_is_told_and_built_anew(tmp_path: Path) -> None:
    tasks = MedicalTasks(cache_dir=str(tmp_path))
    tasks.load("val")
    assert tasks.check() == []
    tasks.path.chmod(0o644)
    with sqlite3.connect(tasks.path) as connection:
        connection.execute("UPDATE disease SET name = 'x'")
    connection.close()
    assert tasks.check() == ["medical.sqlite"]
    tasks.load("val")
    assert tasks.check() == []


def test_damaged_files_are_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for file in DATA.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "val.parquet").write_bytes(b"")
    monkeypatch.setattr(medical, "DATA", tmp_path)
    with pytest.raises(TaskSetError, match=r"val\.parquet"):
        MedicalTasks(cache_dir=str(tmp_path / "cache")).load("val")


def test_an_unknown_split_is_a_user_error(tasks: MedicalTasks) -> None:
    with pytest.raises(TaskSetError, match="train, val"):
        tasks.load("test")

"""Data order is a function of the seed alone."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from harness.config import Config, load_config
from harness.errors import TaskSetError
from harness.records import Task
from harness.training.task_order import (
    order_hash,
    trained_on,
    training_order,
    validation_order,
    write_dataset,
)

TASKS = [Task(f"t{n}", "x", "train", f"Q{n}", f"SELECT 'gold-canary-{n}'", "db") for n in range(50)]


def config(**settings: object) -> Config:
    return load_config("cpu", None, [f"{key}={value}" for key, value in settings.items()])


def test_order_depends_on_the_seed_and_on_nothing_else() -> None:
    first = training_order(TASKS, config(seed=1))
    assert order_hash(first) == order_hash(training_order(TASKS[::-1], config(seed=1)))
    assert order_hash(first) != order_hash(training_order(TASKS, config(seed=2)))


def test_no_step_sees_a_task_twice() -> None:
    settings = load_config("cpu", None, ["train.steps=7", "train.batch_size=16"])
    order = training_order(TASKS, settings)
    assert len(order) == 7 * 16
    for step in range(7):
        batch = order[16 * step : 16 * step + 16]
        assert len({task.id for task in batch}) == 16


def test_validation_is_the_same_for_every_seed_and_a_limit_is_a_fixed_sample() -> None:
    small = load_config("cpu", None, ["task.val_limit=5", "seed=3"])
    other = load_config("cpu", None, ["task.val_limit=5", "seed=4"])
    assert validation_order(TASKS, small) == validation_order(TASKS[::-1], other)
    assert len(validation_order(TASKS, small)) == 5


def test_too_few_tasks_are_refused() -> None:
    with pytest.raises(TaskSetError, match="do not fill a batch"):
        training_order(TASKS[:3], config())


def test_only_tasks_that_a_file_names_are_trained_on(tmp_path: Path) -> None:
    file = tmp_path / "ids.txt"
    only = config(**{"task.train_only": file})
    file.write_text("t7\nt3\n", encoding="utf-8")
    assert [task.id for task in trained_on(TASKS, only)] == ["t3", "t7"]
    assert trained_on(TASKS, config()) is TASKS


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "cannot be read"),
        (b"", "no task id"),
        (b"t3\nx\ny\n", "2 ids, 'x' for one"),
        (b"\xff", "cannot be read"),
    ],
)
def test_a_file_of_ids_that_does_not_fit_is_refused(
    tmp_path: Path, content: bytes | None, message: str
) -> None:
    file = tmp_path / "ids.txt"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(TaskSetError, match=message):
        trained_on(TASKS, config(**{"task.train_only": file}))


def test_gold_is_not_in_the_files_that_verl_reads(tmp_path: Path) -> None:
    path = tmp_path / "train.parquet"
    write_dataset(path, TASKS, "train")
    assert b"gold-canary" not in path.read_bytes()
    assert "gold-canary" not in pl.read_parquet(path).write_json()

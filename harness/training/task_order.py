"""The order of a run's tasks, written as files for verl."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence
from pathlib import Path

from harness.config import Config
from harness.errors import TaskSetError
from harness.records import Task
from harness.util.parsing import read_regular


def trained_on(tasks: Sequence[Task], config: Config) -> Sequence[Task]:
    """Return the training tasks that `task.train_only` selects; all tasks if it names no file.

    Raises:
        TaskSetError: The file cannot be read, is empty, or names a task that the split does not
            have.
    """
    if config.task.train_only is None:
        return tasks
    where = f"task.train_only: {config.task.train_only}"
    try:
        wanted = set(read_regular(config.task.train_only).decode("utf-8").split("\n")) - {""}
    except (OSError, UnicodeDecodeError) as error:
        raise TaskSetError(
            f"{where} cannot be read ({error}); name a file of task ids, one a line"
        ) from error
    if not wanted:
        raise TaskSetError(f"{where} has no task id: there would be nothing to train on")
    # A misspelt id would silently train on fewer tasks.
    if unknown := sorted(wanted - {task.id for task in tasks}):
        raise TaskSetError(
            f"{where} has {len(unknown)} ids, {unknown[0]!r} for one, "
            f"that split {config.task.train_split!r} of "
            f"{config.task.name!r} has not: ids must be of that split (task.train_split)"
        )
    return [task for task in tasks if task.id in wanted]


def training_order(tasks: Sequence[Task], config: Config) -> list[Task]:
    """Return the tasks of every step, one after the other: `steps * batch_size` tasks.

    Each pass over the tasks has a new shuffle from the run's seed; nothing else decides the order.

    Raises:
        TaskSetError: There are fewer tasks than one batch needs.
    """
    batch = config.train.batch_size
    pool = list(tasks)
    random.Random(f"{config.seed}/limit").shuffle(pool)
    pool = sorted(pool[: config.task.train_limit], key=lambda task: task.id)
    if len(pool) < batch:
        raise TaskSetError(
            f"{len(pool)} training tasks do not fill a batch of {batch}: "
            f"--set train.batch_size={max(len(pool), 1)}"
            + (", or a higher task.train_limit" if config.task.train_limit else "")
        )
    if config.train.steps:
        wanted = config.train.steps * batch
    else:
        wanted = config.train.epochs * (len(pool) // batch) * batch
    order: list[Task] = []
    epoch = 0
    while len(order) < wanted:
        shuffled = list(pool)
        random.Random(f"{config.seed}/epoch/{epoch}").shuffle(shuffled)
        order += shuffled[: len(pool) // batch * batch]  # whole batches: no step mixes passes
        epoch += 1
    return order[:wanted]


def validation_order(tasks: Sequence[Task], config: Config) -> list[Task]:
    """Return the validation tasks, the same for every seed.

    A limit takes a fixed, spread-out sample.
    """
    # Sample by hash, because the first ids of a split may all belong to one database.
    spread = sorted(tasks, key=lambda task: hashlib.sha256(task.id.encode()).hexdigest())
    return sorted(spread[: config.task.val_limit], key=lambda task: task.id)


def order_hash(tasks: Sequence[Task]) -> str:
    """Return one hash of ids in order. 16 hex digits."""
    return hashlib.sha256("\n".join(task.id for task in tasks).encode()).hexdigest()[:16]


def write_dataset(path: Path, tasks: Sequence[Task], split: str) -> None:
    """Write the Parquet file for verl's dataset. It names tasks and contains no gold."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = []
    for index, task in enumerate(tasks):
        # verl's dataset requires all of these columns; the run uses the id alone.
        row = {
            "data_source": task.task_set,
            "prompt": [{"role": "user", "content": task.question}],
            "ability": task.task_set,
            "reward_model": {"style": "rule", "ground_truth": ""},
            "extra_info": {"index": index, "split": split, "task_id": task.id},
        }
        rows.append(row)
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows), path)

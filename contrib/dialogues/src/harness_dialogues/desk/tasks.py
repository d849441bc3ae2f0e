"""The task set `order_desk`."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from random import Random

from harness import Task, TaskSetError
from harness_dialogues.desk.world import RULES, visit

SPLITS = ("train", "val")
VERSION = 1
"""Version of the tasks that a seed generates."""


class OrderDeskTasks:
    """Customers, one per task.

    The question is the customer's instructions; the gold, the changes of orders.

    Args:
        seed: Seed of the tasks, independent of the run's.
    """

    def __init__(self, seed: int = 0, train_size: int = 400, val_size: int = 100) -> None:
        self.seed, self.sizes = seed, {"train": train_size, "val": val_size}
        for split, size in self.sizes.items():
            if size < 1:
                raise TaskSetError(f"task.options.{split}_size={size}: take at least 1")

    def load(self, split: str) -> Sequence[Task]:
        if split not in SPLITS:
            raise TaskSetError(f"order_desk has no split {split!r}. Splits: {', '.join(SPLITS)}")
        return [self._task(split, number) for number in range(self.sizes[split])]

    def _task(self, split: str, number: int) -> Task:
        customer = visit(Random(f"{VERSION}/{self.seed}/{split}/{number}"))
        return Task(
            id=f"order_desk/{split}/{number}",
            task_set="order_desk",
            split=split,
            question=customer.instructions,
            gold=json.dumps(customer.changes, sort_keys=True),
            difficulty=f"{len(customer.changes)} of {len(customer.wishes)} wishes granted",
            data={"world": customer.world},
        )

    def context(self, task: Task) -> Mapping[str, str]:
        return {"rules": RULES}

    def describe(self) -> Mapping[str, object]:
        hashes = {}
        for split in SPLITS:
            contents = [(task.question, task.gold) for task in self.load(split)]
            hashes[split] = hashlib.sha256(json.dumps(contents).encode()).hexdigest()
        return {
            "name": "order_desk",
            "version": VERSION,
            "seed": self.seed,
            "counts": self.sizes,
            "tasks_sha256": hashes,
            "rules_sha256": hashlib.sha256(RULES.encode()).hexdigest(),
        }

    def check(self) -> list[str]:
        return []

"""The task set `arithmetic`: sums in words."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

from harness import Task, TaskSetError

SIZES = {"train": 200, "val": 40}
TEMPLATES = (
    ("apples", "A box holds {a} apples. How many apples are in {b} boxes?", "*"),
    ("marbles", "Ann has {a} marbles and wins {b}. How many has she now?", "+"),
    ("road", "A road is {a} km long, {b} km are built. How many km are left?", "-"),
)


class ArithmeticTasks:
    """Questions from templates; a template is a cluster.

    Args:
        largest: The largest number in a question.
    """

    def __init__(self, largest: int = 99) -> None:
        if largest < 2:
            raise ValueError(f"largest={largest} must be at least 2")
        self.largest = largest

    def load(self, split: str) -> Sequence[Task]:
        if split not in SIZES:
            raise TaskSetError(
                f"task set 'arithmetic' has no split {split!r}. Use one of: {', '.join(SIZES)}"
            )
        dice = random.Random(f"arithmetic/{split}/{self.largest}")
        tasks = []
        for number in range(SIZES[split]):
            cluster, text, sign = dice.choice(TEMPLATES)
            b, a = sorted(dice.randint(1, self.largest) for _ in range(2))
            gold = {"+": a + b, "-": a - b, "*": a * b}[sign]
            tasks.append(
                Task(
                    id=f"{split}/{number}",
                    task_set="arithmetic",
                    split=split,
                    question=text.format(a=a, b=b),
                    gold=str(gold),
                    cluster=cluster,
                    difficulty=sign,
                )
            )
        return tasks

    def context(self, task: Task) -> Mapping[str, str]:
        return {}

    def describe(self) -> Mapping[str, Any]:
        return {
            "name": "arithmetic",
            "licence": "CC0",
            "version": 1,
            "options": {"largest": self.largest},
        }

    def check(self) -> list[str]:
        return []

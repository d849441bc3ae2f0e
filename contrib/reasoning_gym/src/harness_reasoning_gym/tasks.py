"""The task set `reasoning_gym`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import Any

from harness import Task, TaskSetError
from harness.contracts.tasks import check_split

VAL_SEED = 1 << 24
"""Puzzle n of a data set uses its seed plus n, so this offset separates the two splits."""
FORM = "Give the final answer, and nothing else, between <answer> and </answer>."


class ReasoningGymTasks:
    """Generated puzzles of one kind.

    Args:
        dataset: A data set of reasoning_gym.
        level: Difficulty in its curriculum.
        seed: Seed of the questions, independent of the run's.
        parameters: Parameters of its configuration, for example `{max_terms: 3}`.
    """

    def __init__(
        self,
        dataset: str = "chain_sum",
        level: int = 0,
        seed: int = 0,
        train_size: int = 1000,
        val_size: int = 200,
        parameters: Mapping[str, object] | None = None,
    ) -> None:
        self.dataset, self.level, self.seed = dataset, level, seed
        self.sizes = {"train": train_size, "val": val_size}
        self.parameters = json.dumps(parameters or {}, sort_keys=True)
        for split, size in self.sizes.items():
            if not 0 < size < VAL_SEED:
                raise TaskSetError(
                    f"task.options.{split}_size={size} must be at least 1 "
                    f"and less than {VAL_SEED:,}"
                )
        if not 0 <= seed < VAL_SEED:
            raise TaskSetError(
                f"task.options.seed={seed} must be at least 0 and less than {VAL_SEED:,}"
            )

    def load(self, split: str) -> Sequence[Task]:
        """Return the questions of a split, without duplicates and overlaps between splits."""
        check_split("reasoning_gym", split, self.sizes)
        seen = {task.question for task in self.load("val")} if split == "train" else set()
        tasks = []
        for task in self._generate(split):
            if task.question not in seen:
                seen.add(task.question)
                tasks.append(task)
        if not tasks:
            raise TaskSetError(
                f"all {split} questions are also in val: {self.dataset!r} "
                "has too few at this difficulty"
            )
        return tasks

    def _generate(self, split: str) -> list[Task]:
        from harness_reasoning_gym.puzzles import puzzles

        size = self.sizes[split]
        seed = self.seed + (VAL_SEED if split == "val" else 0)
        parameters = (self.dataset, self.level, self.parameters, seed, size)
        generated = puzzles(*parameters)
        tasks = []
        for number in range(size):
            entry = generated[number]
            task = Task(
                id=f"{self.dataset}/{split}/{number}",
                task_set="reasoning_gym",
                split=split,
                question=entry["question"],
                # Some puzzles have many right answers and no single gold.
                gold=str(entry["answer"] or ""),
                difficulty=str(self.level),
                data={"puzzles": list(parameters), "number": number},
            )
            tasks.append(task)
        return tasks

    def context(self, task: Task) -> Mapping[str, str]:
        return {"form": FORM}

    def describe(self) -> Mapping[str, Any]:
        options = {
            "dataset": self.dataset,
            "level": self.level,
            "seed": self.seed,
            "sizes": self.sizes,
            "parameters": self.parameters,
        }
        package = version("reasoning-gym")
        return {
            "name": "reasoning_gym",
            "licence": "Apache-2.0",
            "version": package,
            "options": options,
        }

    def check(self) -> list[str]:
        return []

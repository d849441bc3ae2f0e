"""The task set `pocket_split`: generated questions over two databases, each with its own tool."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from random import Random

from harness import Task
from harness.config import cache_dir as user_cache
from harness.contracts.tasks import check_split
from harness_sql.sqlite.environment import GOLD_IS
from harness_sql.tasks.bundled import Built
from harness_teams.environment import DATABASES
from harness_teams.questions import Pair, Question, draw_pair, questions_of

SEED = 1
SIZES = {"train": (64, 8), "val": (24, 5), "test": (24, 10)}
"""Pairs of databases in each split, and questions per pair."""


@cache
def drawn(split: str) -> tuple[tuple[Pair, tuple[Question, ...]], ...]:
    """Return the pairs of a split with their questions, the same on every machine."""
    pairs, questions = SIZES[split]
    found = []
    for number in range(pairs):
        name = f"{split}_{number:03d}"
        rng = Random(f"pocket_split/{SEED}/{name}")
        pair = draw_pair(name, rng)
        found.append((pair, tuple(questions_of(pair, rng, questions))))
    return tuple(found)


class PocketSplitTasks:
    """Questions over databases that are built on first use.

    Args:
        cache_dir: Folder for database files; by default `harness/pocket_split` in the user's cache
            folder.
    """

    name = "pocket_split"

    def __init__(self, cache_dir: str | None = None) -> None:
        home = Path(cache_dir).expanduser() if cache_dir else user_cache() / self.name
        self._root = home / _digest()[:16]
        self._built = Built(self.name)

    def load(self, split: str) -> Sequence[Task]:
        """Return all tasks of `train`, `val` or `test`.

        Raises:
            TaskSetError: The split does not exist, or the databases cannot be built.
        """
        check_split(self.name, split, SIZES)
        tasks = []
        for pair, questions in drawn(split):
            paths = {}
            for name, script in pair.scripts.items():
                paths[name] = str(self._database(pair.name, name, script))
            for number, question in enumerate(questions):
                tasks.append(
                    Task(
                        id=f"{pair.name}-{number}",
                        task_set=self.name,
                        split=split,
                        question=question.text,
                        gold=question.answer,
                        cluster=pair.name,
                        difficulty=question.kind,
                        data={DATABASES: paths, GOLD_IS: "answer", "facts": list(question.facts)},
                    )
                )
        return tasks

    def context(self, task: Task) -> Mapping[str, str]:
        """Return nothing: the schemas are part of the tools, which not every role sees."""
        return {}

    def describe(self) -> Mapping[str, object]:
        """Return counts, licence, and the hash of all questions and databases."""
        counts = {}
        for split, (pairs, _) in SIZES.items():
            questions = sum(len(questions) for _, questions in drawn(split))
            counts[split] = {"pairs": pairs, "questions": questions}
        return {
            "name": self.name,
            "licence": "Apache-2.0",
            "generator_seed": SEED,
            "counts": counts,
            "sha256": _digest(),
        }

    def check(self) -> list[str]:
        """Return databases with files that changed since their tasks were loaded."""
        return self._built.changed()

    def _database(self, pair: str, name: str, script: str) -> Path:
        path = self._root / pair / name / f"{name}.sqlite"
        return self._built.database(str(path), script, path)


@cache
def _digest() -> str:
    contents = []
    for split in SIZES:
        for pair, questions in drawn(split):
            texts = [[question.text, question.answer, *question.facts] for question in questions]
            contents.append([pair.scripts, texts])
    return hashlib.sha256(json.dumps(contents).encode()).hexdigest()

"""Task sets: questions with gold, of one environment."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from harness.errors import TaskSetError
from harness.records import Task


class TaskSet(Protocol):
    """A source of tasks. Built once a process as `TaskSet(**options)`, with the options of the configuration."""

    def load(self, split: str) -> Sequence[Task]:
        """All tasks of a split, always in the same order.

        Raises:
            TaskSetError: Files are missing or damaged; the message says what to do.
        """

    def context(self, task: Task) -> Mapping[str, str]:
        """What the prompts of the program name beside the question, the same for every framework.

        For the environment `sql`: `schema`, the text of the database's schema. Anything else, such as `evidence`, is
        shown after it under its name; no text is empty.
        """

    def describe(self) -> Mapping[str, Any]:
        """Counts, hashes of questions and of what they are about, options, licence: what a run record keeps.

        Hashes are of contents, so that runs on others are not compared.
        """

    def check(self) -> list[str]:
        """Runs at the end of a run: names of files that are not what they were when `load` gave their tasks.

        An agent runs as the user and can change files. Contents count, not times.
        """


def check_split(task_set: str, split: str, splits: Iterable[str]) -> None:
    """Refuse a split that a task set does not have.

    Raises:
        TaskSetError: The message names those that it has.
    """
    if split not in (known := tuple(splits)):
        raise TaskSetError(
            f"task set {task_set!r} has no split {split!r}. Use one of: {', '.join(known)}"
        )

"""The contract of task sets: questions with gold, for one environment."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from harness.errors import TaskSetError
from harness.records import Task


class TaskSet(Protocol):
    """A source of tasks.

    Built once per process as `TaskSet(**options)`, with the configured options.
    """

    def load(self, split: str) -> Sequence[Task]:
        """Return all tasks of a split, always in the same order.

        Raises:
            TaskSetError: Files are missing or damaged; the message states what to do.
        """

    def context(self, task: Task) -> Mapping[str, str]:
        """Return further inputs of the program's prompts, the same for every framework.

        The environment `sql` needs `schema`, the text of the database's schema. Other entries, such
        as `evidence`, follow it under their names; no text is empty.
        """

    def describe(self) -> Mapping[str, Any]:
        """Return data for the run record: counts, hashes of questions and data, options, licence.

        Hashes cover contents, so that runs on different data are not comparable.
        """

    def check(self) -> list[str]:
        """Return the names of files that changed since `load`. Runs at the end of a run.

        An agent runs as the user and can change files. Contents count, not times.
        """


def check_split(task_set: str, split: str, splits: Iterable[str]) -> None:
    """Refuse a split that a task set does not have.

    Raises:
        TaskSetError: The message names the existing splits.
    """
    if split not in (known := tuple(splits)):
        raise TaskSetError(
            f"task set {task_set!r} has no split {split!r}. Use one of: {', '.join(known)}"
        )

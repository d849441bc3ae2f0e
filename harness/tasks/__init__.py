"""Task sets: questions with databases and gold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from harness.records import Task


class TaskSet(Protocol):
    """A source of tasks. Built once a process as `TaskSet(**options)`, with the options of the configuration."""

    def load(self, split: str) -> Sequence[Task]:
        """All tasks of a split, always in the same order.

        Raises:
            TaskSetError: Files are missing or damaged; the message says what to do.
        """

    def schema(self, task: Task) -> str:
        """The schema text that goes into the prompt, the same for every framework."""

    def describe(self) -> Mapping[str, Any]:
        """Counts, hashes of databases and questions, options, licence: what a run record keeps.

        The databases' hashes are of their contents, so that runs on others are not compared.
        """

    def check(self) -> list[str]:
        """Runs at the end of a run: names of databases that are not what they were when `load` gave their tasks.

        An agent runs as the user and can change files. Contents count, not times.
        """

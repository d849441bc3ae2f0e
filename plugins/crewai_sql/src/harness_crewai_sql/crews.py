"""Crews for runners: many at once in a process, and many processes on a machine."""

from __future__ import annotations

from typing import Any

from harness_crewai_sql import quiet  # noqa: F401  isort: skip  (first, it keeps telemetry off)
from crewai import Crew
from crewai.utilities.task_output_storage_handler import TaskOutputStorageHandler
from pydantic import PrivateAttr


class Unsaved(TaskOutputStorageHandler):
    """Keeps no outputs of tasks.

    CrewAI saves them for `crewai replay`, in one database per user and name of the working folder.
    Each crew of each process takes the database's file lock several times, in its event loop, so
    runners of one machine would wait for each other.
    """

    def __init__(self) -> None:
        pass  # the base class opens the database

    def load(self) -> None:
        """Return None: there is nothing to replay."""

    def reset(self) -> None:
        """Do nothing: no outputs are kept."""

    def update(self, task_index: int, log: dict[str, Any]) -> None:
        """Ignore a task's output."""


class UnsavedCrew(Crew):
    """A crew that does not write its tasks' outputs into the user's database."""

    _task_output_handler: TaskOutputStorageHandler = PrivateAttr(default_factory=Unsaved)

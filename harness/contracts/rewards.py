"""The contract of rewards, which give verdicts on answers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Protocol

from harness.records import Attempt, Task, Verdict


class RewardFunction(Protocol):
    """Score answers. Built as `RewardFunction(**options)`, once per process."""

    version: ClassVar[str]
    """Name and version, for example `execution_accuracy/2`. Any change of a verdict requires a new
    version.
    """

    async def score(self, task: Task, attempt: Attempt) -> Verdict:
        """Return the verdict on the answer of a successful attempt; unscored rather than guessed.

        Called for attempts with outcome `ok` only, many at once on one event loop.
        """

    @classmethod
    def identity(cls, options: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the options that decide a verdict, and more if needed, such as a file's hash."""

    @classmethod
    def answer_form(cls, options: Mapping[str, Any]) -> str:
        """Return the form of answers, as `RewardSpec.answer_form`, if it follows from options."""

    def keep_in(self, folder: Path) -> None:
        """Receive a folder of the run for persistent data, before the first verdict.

        All processes get the same folder.
        """

    def refuses(self, task: Task) -> str:
        """Return why no answer to this task can be judged and what to do; empty if it can.

        Called before a run starts.
        """

"""Rewards: verdicts on answers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Protocol

from harness.records import Attempt, Task, Verdict


class RewardFunction(Protocol):
    """Scores answers. Built as `RewardFunction(**options)`, once for all verdicts of a process."""

    version: ClassVar[str]
    """The reward's name and its version, for example `execution_accuracy/2`; any change of a verdict changes it."""

    async def score(self, task: Task, attempt: Attempt) -> Verdict:
        """The verdict on the answer of an attempt that ended well; unscored rather than guessed.

        Others are never asked for. Many are at once, on one event loop.
        """

    @classmethod
    def identity(cls, options: Mapping[str, Any]) -> Mapping[str, Any]:
        """What of its options decides a verdict, where that is not all of them, or more: a file's content, say."""

    def keep_in(self, folder: Path) -> None:
        """Takes a folder of the run's for what it keeps, before the first verdict; all processes have the same."""

    def refuses(self, task: Task) -> str:
        """Why no answer to this task could be judged, and what to do; else empty. Asked before a run starts."""

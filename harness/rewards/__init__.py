"""Rewards: verdicts on answers."""

from __future__ import annotations

from typing import Protocol

from harness.records import Attempt, Reward, Task


class RewardFunction(Protocol):
    """Scores answers. Built once a process as `RewardFunction(**options)`."""

    version: str
    """The reward's name and its version, for example `execution_accuracy/2`; any change of a verdict changes it."""

    def score(self, task: Task, attempt: Attempt) -> Reward:
        """The verdict on the attempt's answer; blocking, called from worker threads. Unscored rather than guessed."""

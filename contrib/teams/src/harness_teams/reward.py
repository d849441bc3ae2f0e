"""The reward `stated`: whether an answer states all required facts and no other number."""

from __future__ import annotations

from dataclasses import replace

from harness import Attempt, Task, Verdict
from harness_sql.rewards.facts import Facts


class Stated:
    """The reward `facts`: all facts or nothing."""

    version = f"stated/1+{Facts.version}"

    def __init__(self) -> None:
        self._facts = Facts()

    async def score(self, task: Task, attempt: Attempt) -> Verdict:
        """Return 1 or 0; unscored if gold has no facts."""
        verdict = await self._facts.score(task, attempt)
        return (
            verdict
            if verdict.value is None
            else replace(verdict, value=float(verdict.value == 1.0), parts={})
        )

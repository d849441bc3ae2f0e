"""The reward `stated`: whether an answer states what it has to, and no other number."""

from __future__ import annotations

from dataclasses import replace

from harness import Attempt, Task, Verdict
from harness_sql.rewards.facts import Facts


class Stated:
    """The reward `facts`, all or nothing."""

    version = f"stated/1+{Facts.version}"

    def __init__(self) -> None:
        self._facts = Facts()

    async def score(self, task: Task, attempt: Attempt) -> Verdict:
        """1 or 0; unscored where gold has no facts."""
        verdict = await self._facts.score(task, attempt)
        return (
            verdict
            if verdict.value is None
            else replace(verdict, value=float(verdict.value == 1.0), parts={})
        )

"""The reward `executes`: 1 if the attempt executed a query, whatever its values."""

from __future__ import annotations

import asyncio

from pydantic import PositiveFloat

from harness.records import Attempt, Task, Verdict
from harness_sql.sqlite.environment import DATABASE, database_of, tool_of
from harness_sql.sqlite.sandbox import Limits, execute


class Executes:
    """Look for a successful query among the attempt's tool calls, else execute its answer.

    Args:
        timeout_s: Deadline of the answer's execution.
        rows: Whether the answer itself must be a query that returns at least one row; tool calls
            then do not count.
    """

    version = "executes/1"

    def __init__(self, *, timeout_s: PositiveFloat = 5.0, rows: bool = False) -> None:
        self._timeout_s = timeout_s
        self._rows = rows

    def refuses(self, task: Task) -> str:
        """Refuse a task without a database."""
        return (
            ""
            if DATABASE in task.data
            else "it has no database, so nothing can execute. Name another reward"
        )

    async def score(self, task: Task, attempt: Attempt) -> Verdict:
        """Return 1.0 or 0.0, or unscored if the database fails."""
        tool = tool_of(task)
        tool_executed = any(call.ok and call.tool == tool for call in attempt.tool_calls)
        if tool_executed and not self._rows:
            # Whether the answer itself can be executed is not known.
            return Verdict(1.0, "a query of the attempt executed")
        limits = Limits(timeout_s=self._timeout_s, max_rows=1)
        result = await asyncio.to_thread(execute, database_of(task), attempt.answer or "", limits)
        if result.error_type in ("missing_database", "damaged_database", "io"):
            return Verdict(None, f"the database fails: {result.error}")
        if result.ok and self._rows and not result.rows:
            return Verdict(0.0, "the answer returns no row", executed=True)
        if result.ok:
            return Verdict(1.0, "the answer executes", executed=True)
        reason = f"nothing executed; the answer fails: {result.error}"[:300]
        return Verdict(0.0, reason, executed=False)

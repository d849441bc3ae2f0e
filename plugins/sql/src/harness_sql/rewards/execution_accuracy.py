"""The reward `execution_accuracy`: 1 if the final query gives gold's result, else 0."""

from __future__ import annotations

import asyncio
from pathlib import Path

from pydantic import PositiveFloat

from harness.records import Attempt, Task, Verdict
from harness_sql.sqlite.environment import GOLD_IS, database_of
from harness_sql.sqlite.evaluator import VERSION, Match, evaluate
from harness_sql.sqlite.gold import GoldCache


class OfQueries:
    """Base class of rewards that execute the answer and gold."""

    def refuses(self, task: Task) -> str:
        """Refuse a task that has an answer in words and no query to execute."""
        if task.data.get(GOLD_IS, "query") == "query":
            return ""
        return (
            "it has an answer but no gold query. "
            "Add one, or name a reward that judges answers: --set reward.name=NAME"
        )

    async def score(self, task: Task, attempt: Attempt) -> Verdict:
        """Return the verdict, unscored if gold or the database fails."""
        return await asyncio.to_thread(
            self._judged, database_of(task), task.gold, attempt.answer or ""
        )

    def _judged(self, path: str, gold_sql: str, pred_sql: str) -> Verdict:
        raise NotImplementedError


def verdict_of(match: Match, flags: tuple[str, ...] = ()) -> Verdict:
    """Convert a comparison to a verdict: 1.0, 0.0 or unscored. The given flags come first."""
    return Verdict(
        None if match.match is None else float(match.match),
        match.reason,
        flags=(*flags, *match.flags),
        executed=match.executed,
    )


class ExecutionAccuracy(OfQueries):
    """Execute the answer and gold and compare their results.

    Args:
        keep_distinct: Keep DISTINCT in both queries instead of dropping it.
        plug_value: Also accept an answer that is right except for its values.
        timeout_s: Deadline of one verdict, for gold and prediction together.
        cache_folder: Folder of gold results that processes share; none by default.
    """

    version = VERSION

    def __init__(
        self,
        *,
        keep_distinct: bool = False,
        plug_value: bool = False,
        timeout_s: PositiveFloat = 10.0,
        cache_folder: str | Path | None = None,
    ) -> None:
        self._keep_distinct = keep_distinct
        self._plug_value = plug_value
        self._timeout_s = timeout_s
        self._cache = GoldCache(cache_folder) if cache_folder is not None else None

    def _judged(self, path: str, gold_sql: str, pred_sql: str) -> Verdict:
        match = evaluate(
            path,
            gold_sql,
            pred_sql,
            keep_distinct=self._keep_distinct,
            plug_value=self._plug_value,
            timeout_s=self._timeout_s,
            cache=self._cache,
        )
        return verdict_of(match)

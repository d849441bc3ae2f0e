"""The rewards `bird_accuracy` and `bird_soft_f1`: what BIRD's official scripts measure, on one database a question.

Source: Li et al. 2023, "Can LLM Already Serve as A Database Interface?"; `evaluation_ex.py` and `evaluation_f1.py` of
bird-bench/mini_dev.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from pydantic import PositiveFloat

from harness.environments.sql.databases import content_hash
from harness.environments.sql.environment import GOLD_IS, database_of
from harness.environments.sql.evaluator import MAX_PREDICTION_CHARS, Match, gold_failed, prediction_failed, steady
from harness.environments.sql.gold import GoldCache
from harness.environments.sql.sandbox import Limits, execute
from harness.records import Attempt, Task, Verdict

Rows = Sequence[tuple[Any, ...]]
_MAX_ROWS = 100_000
_MAX_BYTES = 1 << 26
_TIMES = 10
"""A result of more than so many times gold's rows or bytes is not compared, if it passes the least limits, too."""
_VALUE_BYTES = 1_000_000


class _BirdReward:
    """Runs the answer and gold as they stand.

    Args:
        timeout_s: Deadline of each of the two.
        cache_folder: Where gold results are shared between processes; none by default.
    """

    def __init__(self, *, timeout_s: PositiveFloat = 30.0, cache_folder: str | Path | None = None) -> None:
        self._timeout_s = timeout_s
        self._cache = GoldCache(cache_folder)

    def refuses(self, task: Task) -> str:
        """A task that has an answer in words and no query to execute."""
        if task.data.get(GOLD_IS, "query") == "query":
            return ""
        return (
            "it has an answer but no gold query. Add one, or name a reward that judges answers: --set reward.name=NAME"
        )

    async def score(self, task: Task, attempt: Attempt) -> Verdict:
        """A value of 0 to 1; unscored if the attempt did not end well, or gold or the database fails."""
        if attempt.outcome != "ok":
            return Verdict(None, f"the attempt ended with {attempt.outcome}")
        return await asyncio.to_thread(self._judged, database_of(task), task.gold, attempt.answer or "")

    def value(self, gold: Rows, pred: Rows) -> tuple[float, str]:
        """The value of a prediction's rows, and why."""
        raise NotImplementedError

    def _judged(self, path: str, gold_sql: str, pred_sql: str) -> Verdict:
        limits = Limits(self._timeout_s, max_value_bytes=_VALUE_BYTES)
        try:
            gold = self._cache.get(path, content_hash(path), gold_sql, limits, keep=steady(gold_sql))
        except (OSError, ValueError):
            return Verdict(None, f"no database at {path}", flags=("database_missing",))
        if gold.error is not None:
            return _verdict(gold_failed(path, gold.error_type, gold.error))
        flags = () if gold.rows else ("empty_gold",)
        if len(pred_sql) > MAX_PREDICTION_CHARS:
            reason = f"the prediction has more than {MAX_PREDICTION_CHARS:,} characters"
            return Verdict(0.0, reason, flags=(*flags, "prediction_too_long"))
        if not pred_sql.strip():
            return Verdict(0.0, "there is no query", flags=(*flags, "no_query"))
        room = {
            "max_rows": max(_MAX_ROWS, _TIMES * len(gold.rows)),
            "max_result_bytes": max(_MAX_BYTES, _TIMES * gold.size_bytes),
        }
        result = execute(path, pred_sql, replace(limits, **room))
        if not result.ok:
            return _verdict(prediction_failed(result, self._timeout_s), flags)
        if result.truncated:
            return Verdict(0.0, "the result is too large to compare", flags=(*flags, "prediction_too_large"))
        value, reason = self.value(gold.rows, result.rows)
        return Verdict(value, reason, flags=flags)


class BirdAccuracy(_BirdReward):
    """1 if the answer returns the same set of rows as gold, else 0: no order, no number of equal rows.

    Args:
        timeout_s: Deadline of the answer, and of gold.
        cache_folder: Where gold results are shared between processes; none by default.
    """

    version: ClassVar[str] = "bird_accuracy/1"

    def value(self, gold: Rows, pred: Rows) -> tuple[float, str]:
        expected, found = set(gold), set(pred)
        if expected == found:
            return 1.0, "the same set of rows"
        return 0.0, f"{len(expected - found)} of gold's {len(expected)} rows missing, {len(found - expected)} others"


class BirdSoftF1(_BirdReward):
    """F1 over the cells of rows, the first row of the answer against the first of gold and so on, without repetitions.

    Args:
        timeout_s: Deadline of the answer, and of gold.
        cache_folder: Where gold results are shared between processes; none by default.
    """

    version: ClassVar[str] = "bird_soft_f1/1"

    def value(self, gold: Rows, pred: Rows) -> tuple[float, str]:
        if not gold and not pred:
            return 1.0, "both results are empty"
        expected, found = list(dict.fromkeys(gold)), list(dict.fromkeys(pred))
        both, extra, lacking = 0.0, 0.0, 0.0
        for row, other in zip(expected, found, strict=False):
            both += sum(cell in row for cell in other) / len(row)
            extra += sum(cell not in row for cell in other) / len(row)
            lacking += sum(cell not in other for cell in row) / len(row)
        extra += max(len(found) - len(expected), 0)
        lacking += max(len(expected) - len(found), 0)
        if not both:
            return 0.0, "no cell of gold's at its row"
        precision, recall = both / (both + extra), both / (both + lacking)
        return 2 * precision * recall / (precision + recall), f"precision {precision:.3f}, recall {recall:.3f}"


def _verdict(match: Match, flags: tuple[str, ...] = ()) -> Verdict:
    return Verdict(None if match.match is None else float(match.match), match.reason, flags=(*flags, *match.flags))

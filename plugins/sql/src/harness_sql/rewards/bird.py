"""The rewards `bird_accuracy`, `bird_soft_f1` and `bird_r_ves`: BIRD's official metrics.

Each task is judged on one database.

Source: Li et al. 2023, "Can LLM Already Serve as A Database Interface?"; `evaluation_ex.py`,
`evaluation_f1.py` and `evaluation_ves.py` of bird-bench/mini_dev.
"""

from __future__ import annotations

import asyncio
import inspect
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any, ClassVar

from pydantic import PositiveFloat, PositiveInt

from harness.records import Attempt, Task, Verdict
from harness_sql.rewards.execution_accuracy import OfQueries, verdict_of
from harness_sql.sqlite.databases import content_hash
from harness_sql.sqlite.environment import database_of
from harness_sql.sqlite.evaluator import (
    MAX_PREDICTION_CHARS,
    gold_failed,
    prediction_failed,
)
from harness_sql.sqlite.gold import GoldCache, GoldResult
from harness_sql.sqlite.matching import with_merged_floats
from harness_sql.sqlite.sandbox import Limits, execute

Rows = Sequence[tuple[Any, ...]]
_MAX_ROWS = 100_000
_MAX_BYTES = 1 << 26
_TIMES = 10
"""A result with more than this multiple of gold's rows or bytes is too large to compare.

The limits `_MAX_ROWS` and `_MAX_BYTES` are lower bounds.
"""
_VALUE_BYTES = 1_000_000
_BUCKETS = ((2.0, 1.25), (1.0, 1.0), (0.5, 0.75), (0.25, 0.5))
"""Lower bounds of the time ratio (gold's time to the answer's) and the reward from there on.

A lower ratio gets `_SLOWEST`.
"""
_SLOWEST = 0.25


class _BirdReward(OfQueries):
    """Execute the answer and gold unchanged.

    Args:
        timeout_s: Deadline of each of the two.
        cache_folder: Folder of gold results that processes share; none by default.
    """

    def __init__(
        self, *, timeout_s: PositiveFloat = 30.0, cache_folder: str | Path | None = None
    ) -> None:
        self._timeout_s = timeout_s
        self._cache = GoldCache(cache_folder)

    def value(self, gold: Rows, pred: Rows) -> tuple[float, str]:
        """Return the value of a prediction's rows and the reason."""
        raise NotImplementedError

    def _gold(self, path: str, sql: str) -> GoldResult | Verdict:
        """Return gold's result, or an unscored verdict if there is none."""
        limits = Limits(self._timeout_s, max_value_bytes=_VALUE_BYTES)
        try:
            gold = self._cache.get(path, content_hash(path), sql, limits)
        except (OSError, ValueError):
            return Verdict(None, f"no database at {path}", flags=("database_missing",))
        return (
            gold
            if gold.error is None
            else verdict_of(gold_failed(path, gold.error_type, gold.error))
        )

    def _limits(self, gold: GoldResult) -> Limits:
        return Limits(
            self._timeout_s,
            max_rows=max(_MAX_ROWS, _TIMES * len(gold.rows)),
            max_result_bytes=max(_MAX_BYTES, _TIMES * gold.size_bytes),
            max_value_bytes=_VALUE_BYTES,
        )

    def _judged(self, path: str, gold_sql: str, pred_sql: str) -> Verdict:
        gold = self._gold(path, gold_sql)
        if isinstance(gold, Verdict):
            return gold
        flags = () if gold.rows else ("empty_gold",)
        if len(pred_sql) > MAX_PREDICTION_CHARS:
            reason = f"the prediction has more than {MAX_PREDICTION_CHARS:,} characters"
            too_long = (*flags, "prediction_too_long")
            return Verdict(0.0, reason, flags=too_long, executed=False)
        if not pred_sql.strip():
            return Verdict(0.0, "there is no query", flags=(*flags, "no_query"), executed=False)
        result = execute(path, pred_sql, self._limits(gold))
        if not result.ok:
            return verdict_of(prediction_failed(result, self._timeout_s), flags)
        if result.truncated:
            too_large = (*flags, "prediction_too_large")
            reason = "the result is too large to compare"
            return Verdict(0.0, reason, flags=too_large, executed=True)
        value, reason = self.value(gold.rows, result.rows)
        if value < 1.0 and self._same_but_for_digits(gold.rows, result.rows):
            flags = (*flags, "float_digits")
        return Verdict(value, reason, flags=flags, executed=True)

    def _same_but_for_digits(self, gold: Rows, pred: Rows) -> bool:
        """Return whether the answer would be right if floats were compared to nine digits."""
        merged = with_merged_floats(gold, pred)
        return merged is not None and set(merged[0]) == set(merged[1])


class BirdAccuracy(_BirdReward):
    """Return 1 if the answer gives the same set of rows as gold, else 0.

    Neither the order of rows nor the number of equal rows matters.

    Args:
        timeout_s: Deadline of the answer, and of gold.
        cache_folder: Folder of gold results that processes share; none by default.
    """

    version: ClassVar[str] = "bird_accuracy/1"

    def value(self, gold: Rows, pred: Rows) -> tuple[float, str]:
        expected, found = set(gold), set(pred)
        if expected == found:
            return 1.0, "the same set of rows"
        return (
            0.0,
            f"{len(expected - found)} of gold's {len(expected)} rows missing, "
            f"{len(found - expected)} others",
        )


class BirdSoftF1(_BirdReward):
    """F1 over the cells of rows, comparing rows by position after removing duplicates.

    Args:
        timeout_s: Deadline of the answer, and of gold.
        cache_folder: Folder of gold results that processes share; none by default.
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
        return 2 * precision * recall / (
            precision + recall
        ), f"precision {precision:.3f}, recall {recall:.3f}"


class BirdRVes(BirdAccuracy):
    """R-VES: 0 for a wrong answer, else 0.5 to 1.118 by the ratio of gold's time to the answer's.

    Times are measured, so that verdicts are not reproducible: the same answer may get another value
    the
    next time, and gold itself 1 or 0.866. A process times one answer at a time and alternates its
    runs
    with gold's.

    Args:
        timeout_s: Deadline of each execution. Timed runs stop when they have taken this long
            together,
            after at least one of each.
        runs: Number of timed runs of each. The official script has 100. With 9 or fewer, no ratio
            can be
            an outlier.
        cache_folder: Folder of gold results that processes share; none by default. Times are not
            kept.
    """

    version: ClassVar[str] = "bird_r_ves/1"

    def __init__(
        self,
        *,
        timeout_s: PositiveFloat = 30.0,
        runs: PositiveInt = 20,
        cache_folder: str | Path | None = None,
    ) -> None:
        super().__init__(timeout_s=timeout_s, cache_folder=cache_folder)
        self._runs = runs
        self._turn = asyncio.Lock()

    @classmethod
    def identity(cls, options: Mapping[str, object]) -> dict[str, Any]:
        """Return the deadline and number of runs, marked as not reproducible."""
        given = inspect.signature(cls).bind_partial(**options)
        given.apply_defaults()
        chosen = {name: given.arguments[name] for name in ("timeout_s", "runs")}
        return chosen | {"reproducible": False}

    async def score(self, task: Task, attempt: Attempt) -> Verdict:
        """Return the square root of the official reward, 0 to 1.118.

        The attempt is unscored if `bird_accuracy` leaves it unscored.
        """
        verdict = await super().score(task, attempt)
        if verdict.value is None:
            return verdict
        if not verdict.value:
            return replace(verdict, parts={"right": 0.0})
        async with self._turn:
            return await asyncio.to_thread(
                self._timed, database_of(task), task.gold, attempt.answer or "", verdict
            )

    def _timed(self, path: str, gold_sql: str, pred_sql: str, right: Verdict) -> Verdict:
        gold = self._gold(path, gold_sql)
        if isinstance(gold, Verdict):
            return gold
        limits = self._limits(gold)
        ratios: list[float] = []
        ends = time.monotonic() + self._timeout_s
        for run in range(self._runs + 1):
            answer = execute(path, pred_sql, limits)
            if not answer.ok:
                failed = verdict_of(prediction_failed(answer, self._timeout_s), right.flags)
                return failed if failed.value is None else replace(failed, parts={"right": 0.0})
            own = execute(path, gold_sql, limits)
            if not own.ok:
                return verdict_of(gold_failed(path, own.error_type, own.error or "unknown"))
            if run:  # the first of each may open the database and read it from disk
                ratios.append(own.elapsed_s / answer.elapsed_s)
                if time.monotonic() > ends:
                    break
        ratio = time_ratio(ratios)
        flags = (*right.flags, "fewer_runs") if len(ratios) < self._runs else right.flags
        reason = f"{right.reason}, gold takes {ratio:.2f} of its time (runs: {len(ratios)})"
        return Verdict(
            math.sqrt(paid(ratio)), reason, {"right": 1.0}, flags=flags, executed=right.executed
        )


def time_ratio(ratios: Sequence[float]) -> float:
    """Return the mean of ratios within three standard deviations, or of all if they are equal."""
    mean, far = fmean(ratios), 3 * pstdev(ratios)
    return fmean([one for one in ratios if abs(one - mean) < far] or ratios)


def paid(ratio: float) -> float:
    """Return the R-VES reward of a right answer, before the square root, by its time ratio.

    The ratio is gold's time divided by the answer's.
    """
    for least, reward in _BUCKETS:
        if ratio >= least:
            return reward
    return _SLOWEST

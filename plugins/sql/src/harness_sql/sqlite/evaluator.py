"""Execution accuracy: check whether a query gives the same result as the gold query.

Verdicts follow the Spider test-suite evaluator wherever it is sound. A flag on the verdict names
each difference, and `docs/evaluator.md` explains it. Standard library only.

Source: Zhong et al. 2020, "Semantic Evaluation for Text-to-SQL with Distilled Test Suites";
`eval_exec_match` of taoyds/test-suite-sql-eval.
"""

from __future__ import annotations

import itertools
import os
import re
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path

from harness_sql.sqlite.databases import content_hash, databases_of
from harness_sql.sqlite.gold import GoldCache, GoldResult
from harness_sql.sqlite.kept import Kept
from harness_sql.sqlite.lexer import order_counts, split_statements, without_distinct
from harness_sql.sqlite.matching import SEARCH_TIMEOUT_S, Row, same_result, with_merged_floats
from harness_sql.sqlite.plugging import plugged
from harness_sql.sqlite.sandbox import Execution, Limits, execute

VERSION = "execution_accuracy/2"

MAX_PREDICTION_CHARS = 20_000
"""A longer prediction is no match and is not executed."""
MAX_PLUGGED = 1000
"""Maximum number of value substitutions tried with `plug_value`. The reference has no limit."""

FLAGS = {
    "database_missing": "unscored: no file at the path",
    "database_damaged": "unscored: not SQLite, cut off or not closed cleanly",
    "gold_failed": "unscored: the gold query does not run (the reference stops with an assertion)",
    "gold_timeout": "unscored: the gold query passed half of the deadline "
    "(the reference's never fires)",
    "out_of_resources": "unscored: input/output, or memory for gold; "
    "nothing that the prediction is to blame for",
    "undecided": "unscored: columns that cannot be distinguished in time "
    "(the reference may never end)",
    "no_query": "no match: the prediction is blank (the reference crashes)",
    "statement_refused": "no match: the prediction does more than read (the reference runs it)",
    "prediction_timeout": "no match: the prediction passed the deadline "
    "(the reference's never fires)",
    "prediction_too_long": "no match: the prediction has more than "
    f"{MAX_PREDICTION_CHARS:,} characters",
    "prediction_too_large": "no match: a value longer than the limit, "
    "too much memory though nothing else executed, "
    "parts that double with every name, or one row longer than all of gold",
    "later_statements_ignored": "only the first statement of the prediction counts, "
    "as in the reference",
    "empty_gold": "the gold result is empty, so a match says little",
    "empty_gold_refused": "no match: empty like gold, but with other columns "
    "or from none of gold's tables "
    "(the reference takes any empty result)",
    "int_float": "match: rows mix 1 and 1.0 so that the reference's sorting by text rejects them",
    "float_digits": "no match: floats differ from gold's, but only beyond nine digits",
    "plug_value_capped": f"not all fillings were tried, only {MAX_PLUGGED} "
    "or what the deadline allowed",
    "distinct_paid": "match: with DISTINCT kept it would be none",
    "distinct_denied": "no match: with DISTINCT kept it would be one",
}
"""Every flag that a verdict may carry, with its meaning."""

_CURRENT_YEAR = re.compile(r"YEAR\s*\(\s*CURDATE\s*\(\s*\)\s*\)\s*", re.IGNORECASE)
_VALUE_BYTES = 1_000_000
_KEPT_BYTES = 1 << 26
_MAX_REASON_CHARS = 300


@dataclass(frozen=True, slots=True)
class Match:
    """The verdict on whether a prediction matches gold.

    Attributes:
        match: The verdict, or None if the prediction is unscored.
        reason: One line that explains the verdict.
        flags: Names from `FLAGS`.
        failed: Whether it is no match because the prediction has no result.
    """

    match: bool | None
    reason: str
    flags: tuple[str, ...] = ()
    failed: bool = False

    @property
    def executed(self) -> bool | None:
        """Return whether the prediction has a result, or None if it is unscored."""
        return None if self.match is None else not self.failed


_Key = tuple[tuple[str, ...], str, str, bool, bool, float]

_gold_cache = GoldCache()
_verdicts: Kept[_Key, Match] = Kept(_KEPT_BYTES)
_judging: dict[_Key, Future[Match | None]] = {}
_lock = threading.Lock()


def _forget_after_fork() -> None:
    global _lock
    _lock = threading.Lock()
    _judging.clear()  # by threads that are not there


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_after_fork)


def evaluate(
    db_path: str | Path,
    gold: str,
    pred: str,
    *,
    keep_distinct: bool = False,
    plug_value: bool = False,
    timeout_s: float = 10.0,
    cache: GoldCache | None = None,
) -> Match:
    """Judge a prediction against gold on one database or on all databases of a test suite.

    Never raises for anything that a query or a file can do.

    Args:
        db_path: A SQLite file (possibly with the test suite's other databases in the same folder)
            or
            their folder.
        gold: The gold query.
        pred: The predicted query.
        keep_distinct: Keep DISTINCT in both queries instead of dropping it.
        plug_value: Also try the prediction with its values replaced by gold's, in every
            combination.
        timeout_s: Deadline for all executions of one verdict, without time spent waiting for
            others.
            Gold gets half of it and the prediction the rest. The time of a cached gold result
            counts.
        cache: Cache of gold results. By default, the process shares one.
    """
    paths = databases_of(db_path)
    if not paths:
        return Match(None, f"no *.sqlite file in {db_path}", ("database_missing",))
    try:
        hashes = tuple(content_hash(path) for path in paths)
    except (OSError, ValueError):
        return Match(None, f"no database at {db_path}", ("database_missing",))
    pred = pred[: MAX_PREDICTION_CHARS + 1]  # one more tells that it is too long
    key = (hashes, gold, pred, keep_distinct, plug_value, timeout_s)
    verdict = _verdicts.get(key)
    if verdict is not None:
        return verdict
    databases = list(zip(paths, hashes, strict=True))
    judge = _Judge(databases, timeout_s, plug_value, cache or _gold_cache)
    return _once(key, judge)


def _once(key: _Key, judge: _Judge) -> Match:
    """Return the verdict on a pair and cache it. Concurrent callers wait for the first result."""
    _, gold, pred, keep_distinct, *_ = key
    with _lock:
        other = _judging.get(key)
        if other is None:
            mine = _judging[key] = Future()
    if other is not None:  # a group's rollouts often end with one answer at one time
        verdict = other.result()
        return verdict if verdict is not None else judge.verdict(gold, pred, keep_distinct)
    try:
        verdict = judge.verdict(gold, pred, keep_distinct)
        keep = verdict.match is not None and not judge.out_of_memory and not judge.changing
        if keep:
            size = 500 + sum(map(sys.getsizeof, (gold, pred, verdict.reason)))
            _verdicts.put(key, verdict, size)
        mine.set_result(verdict if keep else None)
        return verdict
    finally:
        with _lock:
            del _judging[key]
        if not mine.done():
            mine.set_result(None)


def gold_result(
    db_path: str | Path, gold: str, *, as_is: bool = False, timeout_s: float = 30.0
) -> GoldResult:
    """Return the result of a gold query on one database.

    DISTINCT is dropped as in `evaluate`, unless `as_is` is set.
    """
    path = str(db_path)
    sql = gold if as_is else prepared(gold, keep_distinct=False)[0]
    try:
        digest = content_hash(path)
    except (OSError, ValueError):
        return GoldResult(error=f"no database at {path}", error_type="missing_database")
    return _gold_cache.get(
        path, digest, sql, Limits(timeout_s=timeout_s, max_value_bytes=_VALUE_BYTES)
    )


def forget() -> None:
    """Clear the verdicts and gold results that this process caches."""
    _verdicts.clear()
    _gold_cache.clear()


class _Judge:
    """Compute one verdict on one or several databases, under one deadline.

    Attributes:
        out_of_memory: Whether a query ran out of memory, so that another run may differ.
        changing: Whether a query read the clock or a random number.
    """

    def __init__(
        self,
        databases: list[tuple[str, str]],
        timeout_s: float,
        plug_value: bool,
        cache: GoldCache,
    ) -> None:
        self.out_of_memory = False
        self.changing = False
        self._databases = databases
        self._timeout_s = timeout_s
        self._plug_value = plug_value
        self._cache = cache
        self._left_s = timeout_s

    def verdict(self, gold: str, pred: str, keep_distinct: bool) -> Match:
        verdict = self._verdict(gold, pred, keep_distinct)
        judged = verdict.match is not None and "prediction_timeout" not in verdict.flags
        if (
            keep_distinct
            or not judged
            or not ("distinct" in gold.lower() or "distinct" in pred.lower())
        ):
            return verdict
        other = self._verdict(gold, pred, True)
        if (
            other.match is None
            or other.match == verdict.match
            or "prediction_timeout" in other.flags
        ):
            return verdict
        return replace(
            verdict, flags=(*verdict.flags, "distinct_paid" if verdict.match else "distinct_denied")
        )

    def _verdict(self, gold: str, pred: str, keep_distinct: bool) -> Match:
        gold_sql, _ = prepared(gold, keep_distinct)
        ordered = order_counts(gold_sql)
        golds: list[GoldResult] = []
        spent_s = 0.0
        for path, digest in self._databases:
            left_s = self._timeout_s / 2 - spent_s
            limits = Limits(timeout_s=left_s, max_value_bytes=_VALUE_BYTES)
            result = self._cache.get(path, digest, gold_sql, limits)
            self.changing |= bool(result.changing)
            spent_s += result.elapsed_s
            kind = (
                "timeout"
                if result.error is None and result.elapsed_s > left_s
                else result.error_type
            )
            if result.error is not None or kind == "timeout":
                self.out_of_memory |= kind == "memory"
                return gold_failed(
                    path, kind, result.error or f"it took longer than {self._timeout_s / 2:g} s"
                )
            golds.append(result)
        self._left_s = min(self._left_s, self._timeout_s - spent_s)
        flags = [] if any(result.rows for result in golds) else ["empty_gold"]
        if len(pred) > MAX_PREDICTION_CHARS:
            reason = f"the prediction has more than {MAX_PREDICTION_CHARS:,} characters"
            return Match(False, reason, (*flags, "prediction_too_long"), failed=True)
        pred_sql, several = prepared(pred, keep_distinct)
        if several and not keep_distinct:
            flags.append("later_statements_ignored")
        if not _has_query(pred_sql):
            return Match(False, "there is no query", (*flags, "no_query"), failed=True)
        first: Match | None = None
        for candidate in self._candidates(gold_sql, pred_sql, flags):
            verdict = self._on_all(golds, candidate, ordered)
            if verdict.match is not False:
                return replace(verdict, flags=(*flags, *verdict.flags))
            # If no filling matches, the verdict is that on the query as it was written.
            first = first or verdict
        assert first is not None
        return replace(first, flags=(*flags, *first.flags))

    def _candidates(self, gold_sql: str, pred_sql: str, flags: list[str]) -> Iterator[str]:
        yield pred_sql
        if not self._plug_value:
            return
        fillings = plugged(gold_sql, pred_sql)
        for count in itertools.count():
            started = time.thread_time()  # its own work alone: waiting for others is not counted
            candidate = next(fillings, None)
            self._left_s -= time.thread_time() - started
            if candidate is None:
                return
            if count == MAX_PLUGGED or self._left_s <= 0:
                flags.append("plug_value_capped")
                return
            yield candidate

    def _on_all(self, golds: list[GoldResult], sql: str, ordered: bool) -> Match:
        flags: set[str] = set()
        empty = not any(gold.rows for gold in golds)
        for (path, _), gold in zip(self._databases, golds, strict=True):
            result = self._execute(path, sql, gold)
            if not result.ok:
                if not (result.error_type == "too_large" and result.columns):
                    return prediction_failed(result, self._timeout_s)
                return Match(False, "the result is longer than gold's", ("prediction_too_large",))
            # Any query that finds nothing equals an empty gold, so columns and tables must agree.
            if empty and not result.rows:
                if len(result.columns) != len(gold.columns):
                    return Match(
                        False, "empty like gold, but with other columns", ("empty_gold_refused",)
                    )
                if gold.tables and not (gold.tables & result.tables):
                    return Match(
                        False,
                        "empty like gold, but from none of gold's tables",
                        ("empty_gold_refused",),
                    )
                continue
            if result.truncated:
                return Match(False, _difference(gold, result, ordered))
            started = time.monotonic()
            timeout_s = min(SEARCH_TIMEOUT_S, self._left_s)
            same = same_result(gold.rows, result.rows, ordered=ordered, timeout_s=timeout_s)
            self._left_s -= time.monotonic() - started
            if same is False:
                close = self._same_but_for_digits(gold.rows, result.rows, ordered)
                flags_of = ("float_digits",) if close else ()
                return Match(False, _difference(gold, result, ordered), flags_of)
            if same is None:
                return Match(None, "columns cannot be distinguished in time", ("undecided",))
            if _reference_sorts_apart(gold.rows, result.rows, ordered):
                flags.add("int_float")
        return Match(
            True, "same result" if not empty else "both results are empty", tuple(sorted(flags))
        )

    def _same_but_for_digits(self, gold: list[Row], rows: list[Row], ordered: bool) -> bool:
        """Return whether two results differ only in digits of floats beyond the ninth."""
        merged = with_merged_floats(gold, rows)
        if merged is None:
            return False
        started = time.monotonic()
        timeout_s = min(SEARCH_TIMEOUT_S, self._left_s)
        same = same_result(merged[0], merged[1], ordered=ordered, timeout_s=timeout_s)
        self._left_s -= time.monotonic() - started
        return same is True

    def _execute(self, path: str, sql: str, gold: GoldResult) -> Execution:
        if self._left_s <= 0:
            return Execution(False, error_type="timeout")
        # One row or byte more than gold's is enough to know that the results differ.
        limits = Limits(
            timeout_s=self._left_s,
            max_rows=len(gold.rows) + 1,
            max_result_bytes=max(gold.size_bytes, 1 << 16),
            max_value_bytes=_VALUE_BYTES,
            # Once a query has read the clock, the verdict is not kept, whatever the others read.
            find_changing=not self.changing,
        )
        result = execute(path, sql, limits)
        self._left_s -= result.elapsed_s
        self.changing |= bool(result.changing)
        self.out_of_memory |= result.error_type == "memory"
        return result


def prediction_failed(result: Execution, timeout_s: float) -> Match:
    """Return the verdict on a prediction that failed: wrong, or unscored if it is not to blame."""
    kind = result.error_type
    if kind == "timeout":
        reason = f"the prediction passed the deadline of {timeout_s:g} s"
        return Match(False, reason, ("prediction_timeout",), failed=True)
    reason = f"the prediction fails: {result.error}"[:_MAX_REASON_CHARS]
    if kind == "io":
        return Match(None, reason, ("out_of_resources",))
    if kind in ("missing_database", "damaged_database"):
        return Match(None, reason, (f"database_{kind.split('_')[0]}",))
    flag = {
        "denied": "statement_refused",
        "too_large": "prediction_too_large",
        "memory": "prediction_too_large",
    }
    return Match(False, reason, (flag[kind],) if kind in flag else (), failed=True)


def gold_failed(path: str, kind: str | None, error: str) -> Match:
    """Return the verdict if gold has no result: unscored."""
    flag = {
        "timeout": "gold_timeout",
        "memory": "out_of_resources",
        "io": "out_of_resources",
        "damaged_database": "database_damaged",
    }
    reason = f"the gold query has no result on {Path(path).name}: {error}"[:_MAX_REASON_CHARS]
    return Match(None, reason, (flag.get(kind or "", "gold_failed"),))


def prepared(sql: str, keep_distinct: bool) -> tuple[str, bool]:
    """Return the query as the reference executes it, and whether more statements followed it."""
    sql = sql.replace("> =", ">=").replace("< =", "<=").replace("! =", "!=")
    statements = split_statements(sql) if ";" in sql else [sql]
    several = len(statements) > 1
    if not keep_distinct:
        # The reference parses to drop DISTINCT and by that loses all but the first statement.
        sql = without_distinct(statements[0] if statements else "")
    return _CURRENT_YEAR.sub("2020 ", sql), several


def _has_query(sql: str) -> bool:
    if sql[:1].isalpha():
        return True
    return any(statement.strip(" \t\r\n\f;") for statement in split_statements(sql))


def _difference(gold: GoldResult, result: Execution, ordered: bool) -> str:
    if result.truncated:
        return f"more rows or longer ones than gold's {len(gold.rows)}"
    if len(gold.rows) != len(result.rows):
        return f"{len(result.rows)} rows where gold has {len(gold.rows)}"
    if len(gold.columns) != len(result.columns):
        return f"{len(result.columns)} columns where gold has {len(gold.columns)}"
    return "other values than gold's" + (", or another order" if ordered else "")


def _reference_sorts_apart(gold: list[Row], pred: list[Row], ordered: bool) -> bool:
    """Return whether the reference's quick check rejects two results that are equal."""
    if not gold or len(gold[0]) == 1:
        return False
    types = set(map(type, chain.from_iterable(gold)))
    types.update(map(type, chain.from_iterable(pred)))
    if not (float in types and int in types):
        return False
    # The reference sorts the cells of a row by their text and type, so 1 and 1.0 may change places.
    left, right = list(map(_in_text_order, gold)), list(map(_in_text_order, pred))
    return left != right if ordered else set(left) != set(right)


def _in_text_order(row: Row) -> Row:
    return tuple(sorted(row, key=lambda value: str(value) + str(type(value))))

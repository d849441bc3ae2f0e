"""The reward `soft_f1`: how close a query is to gold, for models that are seldom exact."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Collection, Hashable, Iterable
from dataclasses import replace
from itertools import chain

from harness.records import Attempt, Task, Verdict
from harness_sql.rewards.execution_accuracy import ExecutionAccuracy
from harness_sql.sqlite.databases import databases_of
from harness_sql.sqlite.environment import database_of
from harness_sql.sqlite.evaluator import VERSION, gold_result, prepared
from harness_sql.sqlite.lexer import tokenize
from harness_sql.sqlite.sandbox import Limits, execute

WEIGHTS = {"parses": 0.05, "runs": 0.05, "tables": 0.1, "columns": 0.1, "cells": 0.3, "exact": 0.4}
"""Weight of each part of the value."""
_UNREAD = re.compile(
    r"syntax error|incomplete input|unrecognized token|there is no query|one statement"
    r"|null character|can't encode|stack overflow|SQL logic error"
)
"""Messages about text that SQLite could not parse. The last is for text too long to repeat."""
_READING = frozenset({"select", "with", "values"})
_WRITING = frozenset({"delete", "into", "update"})
"""Keywords that, unquoted, do not occur in a reading statement.

They are needed because SQLite looks up tables before it asks the authorizer to write.
"""
_ROWS_BEYOND = 1000


class SoftF1(ExecutionAccuracy):
    """Execution accuracy, or below 1 the weighted mean of the query's correct parts.

    Options are those of `execution_accuracy`.
    """

    version = f"soft_f1/2.{VERSION.rpartition('/')[2]}"
    """The reward's own version and that of its execution accuracy."""

    async def score(self, task: Task, attempt: Attempt) -> Verdict:
        """Return 1 exactly if execution accuracy is 1; unscored if it is unscored."""
        exact = await super().score(task, attempt)
        if exact.value is None:
            return exact
        if exact.value == 1.0:
            return replace(exact, parts=dict.fromkeys(WEIGHTS, 1.0))
        parts = dict.fromkeys(WEIGHTS, 0.0)
        if not {"no_query", "prediction_too_long", "statement_refused"}.intersection(exact.flags):
            parts |= await asyncio.to_thread(
                self._graded, database_of(task), task.gold, attempt.answer or ""
            )
        value = sum(WEIGHTS[name] * part for name, part in parts.items())
        return replace(exact, value=value, parts=parts)

    def _graded(self, database: str, gold: str, pred: str) -> dict[str, float]:
        path = str(databases_of(database)[0])
        wanted = gold_result(path, gold)
        limits = Limits(
            timeout_s=self._timeout_s,
            max_rows=len(wanted.rows) + _ROWS_BEYOND,
            max_result_bytes=1 << 24,
        )
        sql = prepared(pred, self._keep_distinct)[0]
        found = execute(path, sql, limits)
        if not found.ok:
            return {"parses": float(_is_query(sql) and not _UNREAD.search(found.error or ""))}
        return {
            "parses": 1.0,
            "runs": 1.0,
            "tables": f1(wanted.tables, found.tables),
            "columns": f1(wanted.reads, found.reads),
            "cells": f1(_cells(wanted.rows), _cells(found.rows)) if wanted.rows else 0.0,
        }


def f1(wanted: Collection[Hashable], found: Collection[Hashable]) -> float:
    """Return the F1 of two multisets, or 1 if both are empty."""
    if not wanted and not found:
        return 1.0
    return 2 * (Counter(wanted) & Counter(found)).total() / (len(wanted) + len(found))


def _is_query(sql: str) -> bool:
    words = [token.text.lower() for token in tokenize(sql) if token.kind == "word"]
    return bool(words) and words[0] in _READING and _WRITING.isdisjoint(words)


def _cells(rows: Iterable[tuple[object, ...]]) -> list[Hashable]:
    return list(chain.from_iterable(rows))

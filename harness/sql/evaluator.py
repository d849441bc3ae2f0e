"""Execution accuracy: does a query give the same result as the gold query?

The verdicts of the Spider test-suite evaluator wherever they are sound; every place where this one differs is
named by a flag on the verdict and explained in `docs/evaluator.md`. Standard library only.

Source: Zhong et al. 2020, "Semantic Evaluation for Text-to-SQL with Distilled Test Suites"; `eval_exec_match`
of taoyds/test-suite-sql-eval.
"""

from __future__ import annotations

import re
import threading
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from harness.sql.databases import content_hash, databases_of
from harness.sql.gold import GoldCache, GoldResult
from harness.sql.lexer import split_statements, without_distinct
from harness.sql.matching import Row, same_result
from harness.sql.plugging import plugged
from harness.sql.sandbox import Execution, Limits, execute

VERSION = "execution_accuracy/1"

MAX_PLUGGED = 1000
"""How many fillings of a prediction's values are tried with `plug_value`; the reference has no limit."""

FLAGS = {
    "database_missing": "unscored: no file at the path",
    "database_damaged": "unscored: not SQLite, cut off or not closed cleanly",
    "gold_failed": "unscored: the gold query does not run (the reference stops with an assertion)",
    "gold_timeout": "unscored: the gold query passed its deadline (the reference's never fires)",
    "out_of_resources": "unscored: input/output, or memory for gold; nothing that the prediction is to blame for",
    "undecided": "unscored: columns that cannot be told apart in time (the reference may never end)",
    "no_query": "no match: the prediction is blank (the reference crashes)",
    "statement_refused": "no match: the prediction does more than read (the reference runs it)",
    "prediction_timeout": "no match: the prediction passed its deadline (the reference's never fires)",
    "prediction_too_large": "no match: a value longer than the limit, too much memory (twice), or one row longer "
    "than all of gold",
    "later_statements_ignored": "only the first statement of the prediction counts, as in the reference",
    "empty_gold": "the gold result is empty, so a match says little",
    "empty_gold_refused": "no match: empty like gold, but with other columns or from none of gold's tables "
    "(the reference takes any empty result)",
    "int_float": "match: rows mix 1 and 1.0 so that the reference's sorting by text rejects them",
    "plug_value_capped": f"not all fillings were tried, only {MAX_PLUGGED}",
}
"""Every flag that a verdict may carry, with its meaning."""

_CURRENT_YEAR = re.compile(r"YEAR\s*\(\s*CURDATE\s*\(\s*\)\s*\)\s*", re.IGNORECASE)
_CHANGING = re.compile(r"random|current_|\bnow\b|julianday|unixepoch|date\s*\(\s*\)|time\s*\(\s*\)", re.IGNORECASE)
_VALUE_BYTES = 1_000_000
_KEPT_VERDICTS = 50_000


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a prediction matches gold.

    Attributes:
        match: The verdict, or None when there cannot be one (unscored).
        reason: One line: why.
        flags: Names from `FLAGS`.
    """

    match: bool | None
    reason: str
    flags: tuple[str, ...] = ()


_gold_cache = GoldCache()
_verdicts: OrderedDict[tuple[object, ...], Verdict] = OrderedDict()
_lock = threading.Lock()
_hoarders = threading.Lock()


def evaluate(
    db_path: str | Path,
    gold: str,
    pred: str,
    *,
    keep_distinct: bool = False,
    plug_value: bool = False,
    timeout_s: float = 10.0,
    cache: GoldCache | None = None,
) -> Verdict:
    """Judges a prediction against gold on one database or on all of a test suite's.

    Args:
        db_path: A SQLite file (with the test suite's further databases beside it, if any) or their folder.
        gold: The gold query.
        pred: The predicted query.
        keep_distinct: Keep DISTINCT in both queries instead of dropping it.
        plug_value: Also try the prediction with its values replaced by gold's, in every way.
        timeout_s: Deadline of each single execution.
        cache: Where gold results are kept; one shared by the process by default.

    Returns:
        The verdict. Never raises for anything that a query or a file can do.
    """
    paths = databases_of(db_path)
    if not paths:
        return Verdict(None, f"no *.sqlite file in {db_path}", ("database_missing",))
    try:
        hashes = tuple(content_hash(path) for path in paths)
    except (OSError, ValueError):
        return Verdict(None, f"no database at {db_path}", ("database_missing",))
    key = (hashes, gold, pred, keep_distinct, plug_value, timeout_s)
    known = _verdicts.get(key)
    if known is not None:
        return known
    verdict = _judge(
        list(zip(paths, hashes, strict=True)),
        gold,
        pred,
        keep_distinct=keep_distinct,
        plug_value=plug_value,
        timeout_s=timeout_s,
        cache=cache or _gold_cache,
    )
    if verdict.match is not None and "prediction_timeout" not in verdict.flags and not _CHANGING.search(gold + pred):
        with _lock:
            _verdicts[key] = verdict
            if len(_verdicts) > _KEPT_VERDICTS:
                _verdicts.popitem(last=False)
    return verdict


def gold_result(db_path: str | Path, gold: str, *, timeout_s: float = 30.0) -> GoldResult:
    """What a gold query gives on one database, executed as `evaluate` does (DISTINCT dropped)."""
    path = str(db_path)
    sql, _ = _prepared(gold, keep_distinct=False)
    try:
        digest = content_hash(path)
    except (OSError, ValueError):
        return GoldResult(error=f"no database at {path}", error_type="missing_database")
    return _gold_cache.get(path, digest, sql, Limits(timeout_s=timeout_s, max_value_bytes=_VALUE_BYTES))


def forget() -> None:
    """Drops the verdicts and gold results that this process keeps."""
    with _lock:
        _verdicts.clear()
    _gold_cache.clear()


def _judge(
    databases: list[tuple[str, str]],
    gold: str,
    pred: str,
    *,
    keep_distinct: bool,
    plug_value: bool,
    timeout_s: float,
    cache: GoldCache,
) -> Verdict:
    gold_sql, _ = _prepared(gold, keep_distinct)
    ordered = "order by" in gold_sql.lower()
    limits = Limits(timeout_s=timeout_s, max_value_bytes=_VALUE_BYTES)
    golds: list[GoldResult] = []
    for path, digest in databases:
        result = cache.get(path, digest, gold_sql, limits, keep=not _CHANGING.search(gold_sql))
        if result.error is not None:
            flag = {"timeout": "gold_timeout", "memory": "out_of_resources", "io": "out_of_resources"}.get(
                result.error_type or "", "gold_failed"
            )
            flag = "database_damaged" if result.error_type == "damaged_database" else flag
            return Verdict(None, f"the gold query has no result on {Path(path).name}: {result.error}", (flag,))
        golds.append(result)
    pred_sql, several = _prepared(pred, keep_distinct)
    flags = ["empty_gold"] if all(not result.rows for result in golds) else []
    if several and not keep_distinct:
        flags.append("later_statements_ignored")
    if not _has_query(pred_sql):
        return Verdict(False, "there is no query", (*flags, "no_query"))
    first: Verdict | None = None
    for candidate in _candidates(gold_sql, pred_sql, plug_value, flags):
        verdict = _on_all(databases, golds, candidate, ordered, limits)
        if verdict.match is not False:
            return replace(verdict, flags=(*flags, *verdict.flags))
        first = first or verdict
    assert first is not None
    return replace(first, flags=(*flags, *first.flags))


def _prepared(sql: str, keep_distinct: bool) -> tuple[str, bool]:
    """The query as the reference executes it, and whether further statements followed it."""
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


def _candidates(gold_sql: str, pred_sql: str, plug_value: bool, flags: list[str]) -> Iterator[str]:
    yield pred_sql
    if not plug_value:
        return
    for count, candidate in enumerate(plugged(gold_sql, pred_sql)):
        if count == MAX_PLUGGED:
            flags.append("plug_value_capped")
            return
        yield candidate


def _on_all(
    databases: list[tuple[str, str]], golds: list[GoldResult], sql: str, ordered: bool, limits: Limits
) -> Verdict:
    flags: set[str] = set()
    empty = all(not gold.rows for gold in golds)
    for (path, _), gold in zip(databases, golds, strict=True):
        # One row or byte more than gold's is enough to know that the results differ.
        capped = replace(limits, max_rows=len(gold.rows) + 1, max_result_bytes=max(gold.size_bytes, 1 << 16))
        result = execute(path, sql, capped)
        if result.error_type == "memory":
            # SQLite's heap is the process's, so another thread may be to blame: once more, one at a time.
            with _hoarders:
                result = execute(path, sql, capped)
        if not result.ok:
            if not (result.error_type == "too_large" and result.columns):
                return _failed(result)
            return Verdict(False, "the result is longer than gold's", ("prediction_too_large",))
        if empty and not result.rows:
            if len(result.columns) != len(gold.columns):
                return Verdict(False, "empty like gold, but with other columns", ("empty_gold_refused",))
            if gold.tables and not (gold.tables & result.tables):
                return Verdict(False, "empty like gold, but from none of gold's tables", ("empty_gold_refused",))
            continue
        same = None if result.truncated else same_result(gold.rows, result.rows, ordered=ordered)
        if result.truncated or same is False:
            return Verdict(False, _difference(gold, result, ordered))
        if same is None:
            return Verdict(None, "columns cannot be told apart in time", ("undecided",))
        if _reference_sorts_apart(gold.rows, result.rows, ordered):
            flags.add("int_float")
    return Verdict(True, "same result" if not empty else "both results are empty", tuple(sorted(flags)))


def _failed(result: Execution) -> Verdict:
    kind = result.error_type
    reason = f"the prediction fails: {result.error}"
    if kind == "io":
        return Verdict(None, reason, ("out_of_resources",))
    if kind in ("missing_database", "damaged_database"):
        return Verdict(None, reason, (f"database_{kind.split('_')[0]}",))
    flag = {
        "denied": "statement_refused",
        "timeout": "prediction_timeout",
        "too_large": "prediction_too_large",
        "memory": "prediction_too_large",
    }
    return Verdict(False, reason, (flag[kind],) if kind in flag else ())


def _difference(gold: GoldResult, result: Execution, ordered: bool) -> str:
    if result.truncated:
        return f"more rows or longer ones than gold's {len(gold.rows)}"
    if len(gold.rows) != len(result.rows):
        return f"{len(result.rows)} rows where gold has {len(gold.rows)}"
    if len(gold.columns) != len(result.columns):
        return f"{len(result.columns)} columns where gold has {len(gold.columns)}"
    return "other values than gold's" + (", or another order" if ordered else "")


def _reference_sorts_apart(gold: list[Row], pred: list[Row], ordered: bool) -> bool:
    """Whether the reference's quick rejection turns down two results that are in fact the same."""
    if not gold or len(gold[0]) == 1:
        return False
    types = [{type(value) for row in rows for value in row} for rows in (gold, pred)]
    if not (float in types[0] | types[1] and int in types[0] | types[1]):
        return False
    left, right = (
        [tuple(sorted(row, key=lambda value: str(value) + str(type(value)))) for row in rows] for rows in (gold, pred)
    )
    return left != right if ordered else set(left) != set(right)

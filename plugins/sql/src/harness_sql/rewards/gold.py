"""Gold data of a task, for rewards that read answers in words."""

from __future__ import annotations

from harness.records import Task
from harness_sql.sqlite.environment import ANSWER, DATABASE, GOLD_IS, database_of
from harness_sql.sqlite.evaluator import gold_result
from harness_sql.sqlite.gold import GoldResult


class GoldFails(ValueError):
    """A gold query has no result, so that no answer can be judged."""


def has_query(task: Task) -> bool:
    """Return whether the task's gold is a query on its database."""
    return DATABASE in task.data and task.data.get(GOLD_IS, "query") == "query"


def in_words(task: Task) -> str:
    """Return the gold answer in words, or an empty string if there is none."""
    return str(task.data.get(ANSWER) or ("" if has_query(task) else task.gold)).strip()


def result_of(task: Task) -> GoldResult:
    """Return the result of the gold query. This call blocks.

    Raises:
        GoldFails: It has no result.
    """
    result = gold_result(database_of(task), task.gold)
    if result.error is not None:
        raise GoldFails(f"the gold query has no result: {result.error}")
    return result

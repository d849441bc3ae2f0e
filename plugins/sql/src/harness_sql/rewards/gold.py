"""What is known to be right about a task, for rewards that read answers in words."""

from __future__ import annotations

from harness.records import Task
from harness_sql.sqlite.environment import ANSWER, DATABASE, GOLD_IS, database_of
from harness_sql.sqlite.evaluator import gold_result
from harness_sql.sqlite.gold import GoldResult


class GoldFails(ValueError):
    """A gold query without a result: nothing can be said of any answer."""


def has_query(task: Task) -> bool:
    """Whether its gold is a query on its database."""
    return DATABASE in task.data and task.data.get(GOLD_IS, "query") == "query"


def in_words(task: Task) -> str:
    """The gold answer in words; empty where there is none."""
    return str(task.data.get(ANSWER) or ("" if has_query(task) else task.gold)).strip()


def result_of(task: Task) -> GoldResult:
    """What the gold query gives; blocks.

    Raises:
        GoldFails: It gives nothing.
    """
    result = gold_result(database_of(task), task.gold)
    if result.error is not None:
        raise GoldFails(f"the gold query has no result: {result.error}")
    return result

"""Find answers without a result, for rewards that report them."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import polars as pl

REFUSED = ("the prediction fails", "nothing executed")
"""Prefixes of a reward's reason for an answer that cannot be executed."""
NO_RESULT = (
    *REFUSED,
    "there is no ",
    "the prediction has more than",
    "the prediction passed the deadline",
)
"""Prefixes of a reward's reason for an answer without a result."""
REWARDS_WITH_REASONS = (
    "execution_accuracy",
    "executes",
    "soft_f1",
    "bird_accuracy",
    "bird_soft_f1",
    "bird_r_ves",
)
"""Rewards with reasons that begin so, which older records have instead of `executed`."""


def has_no_result(rows: pl.DataFrame) -> pl.Series:
    """Return for each episode whether it has no answer, or an answer without a result.

    Null if the reward does not report it.
    """
    return rows.select(fails=no_result(rows.columns))["fails"]


def no_result(columns: Collection[str]) -> pl.Expr:
    """Return the expression of `has_no_result` for episodes with these columns."""
    return _failing(columns, NO_RESULT, unanswered=True)


def failing_answers(rows: pl.DataFrame) -> int:
    """Return the number of answers that fail, without those for which the reward reports nothing.

    Older records count only answers that do not run.
    """
    fails = _failing(rows.columns, REFUSED, unanswered=False)
    return int(rows.select(fails.sum()).item())


def unknown_answers(rows: pl.DataFrame) -> int:
    """Return the number of scored answers for which the reward does not report if they fail.

    It is 0 for older records, in which no reward could report it.
    """
    if "executed" not in rows.columns:
        return 0
    import polars as pl

    unknown = no_result(rows.columns).is_null() & pl.col("reward").is_not_null()
    return int(rows.select(unknown.sum()).item())


def _failing(columns: Collection[str], starts: tuple[str, ...], unanswered: bool) -> pl.Expr:
    """Return whether an episode's answer fails, by the reward's flag or by its reason.

    Args:
        columns: Names of the episodes' columns.
        starts: Prefixes of reasons for failing answers.
        unanswered: Value of an episode that ended without an answer.
    """
    import polars as pl

    by_reason = pl.lit(False)
    reason = pl.col("reward_reason").cast(str).fill_null("")
    for start in starts:
        by_reason |= reason.str.starts_with(start)
    name = pl.lit(None, pl.String)
    if "reward_version" in columns:
        name = pl.col("reward_version").str.split("/").list.first()
    fails: pl.Expr = pl.when(name.is_in(REWARDS_WITH_REASONS)).then(by_reason)
    if "executed" in columns:
        executed = pl.col("executed").cast(pl.Boolean)
        fails = pl.when(executed.is_not_null()).then(~executed).otherwise(fails)
    ended = pl.col("outcome") == "ok"
    return pl.when(ended).then(fails).otherwise(unanswered)

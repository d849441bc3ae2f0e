"""Columns that the tables of a run need, and their types."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from harness.errors import UserError
from harness.runs.folder import Kind

if TYPE_CHECKING:
    import polars as pl

_NEEDED = {
    "episodes": {
        *("phase", "step", "session", "task_id", "cluster", "difficulty", "question"),
        *("outcome", "detail", "answer", "reward", "reward_reason", "tool_calls"),
        *("first_reward", "rewrites", "transitions", "trained_transitions"),
        *("prompt_tokens", "response_tokens", "trained_tokens"),
    },
    "transitions": {"phase", "step", "role", "trained"},
    "steps": {"step"},
}
"""Columns that a table needs; published copies have them, too."""
_NUMBERS = {
    "step": "Int64",
    "reward": "Float64",
    "first_reward": "Float64",
    "rewrites": "Int64",
    "transitions": "Int64",
    "prompt_tokens": "Int64",
    "response_tokens": "Int64",
    "trained_tokens": "Int64",
    "trained_transitions": "Int64",
    "step_s": "Float64",
    "rollout_s": "Float64",
    "gradient_norm": "Float64",
}
"""Columns that must hold numbers, with their types in polars."""
_TEXTS = ("phase", "task_id", "cluster", "difficulty", "outcome", "reward_version", "role")
"""Columns that must hold texts."""


def checked(
    kind: Kind, schema: Mapping[str, pl.DataType], shown: str, advice: str
) -> list[pl.Expr]:
    """Check the columns of a table, and return the casts that give them their types.

    Tables of several runs are joined, which needs columns of one type.

    Args:
        schema: Types of the table's columns, by name.
        shown: The table's path, for messages.
        advice: What to do about a table that cannot be used.

    Raises:
        UserError: A column is missing, or holds neither numbers nor texts where it must.
    """
    import polars as pl

    if missing := sorted(_NEEDED[kind].difference(schema)):
        more = f" and {len(missing) - 4} more" if len(missing) > 4 else ""
        raise UserError(f"{shown} has no column {', '.join(missing[:4])}{more}. {advice}")
    casts: list[pl.Expr] = []
    for name, stored in schema.items():
        if name in _NUMBERS:
            if not (stored.is_numeric() or stored == pl.Null):
                raise UserError(f"{shown}: the column {name} holds no numbers. {advice}")
            wanted: type[pl.DataType] = getattr(pl, _NUMBERS[name])
        elif name in _TEXTS:
            if stored.is_nested():
                raise UserError(f"{shown}: the column {name} holds no texts. {advice}")
            wanted = pl.String
        else:
            continue
        if stored != wanted:
            casts.append(pl.col(name).cast(wanted))
    return casts

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
_COUNTS = (
    *("rewrites", "transitions", "trained_transitions"),
    *("prompt_tokens", "response_tokens", "trained_tokens"),
)
_TEXTS = ("phase", "task_id", "cluster", "difficulty", "outcome", "reward_version", "role")
_NUMBERS: dict[Kind, dict[str, str]] = {
    "episodes": {
        "step": "Int64",
        "reward": "Float64",
        "first_reward": "Float64",
        **dict.fromkeys(_COUNTS, "Int64"),
    },
    "transitions": {"step": "Int64", "reward": "Float64"},
    # A trainer logs further figures under names of its own.
    "steps": {
        "step": "Int64",
        "reward": "Float64",
        "step_s": "Float64",
        "rollout_s": "Float64",
        "gradient_norm": "Float64",
    },
}
"""Columns that must hold numbers, with their types in polars."""


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
    numbers = _NUMBERS[kind]
    texts = () if kind == "steps" else _TEXTS
    casts: list[pl.Expr] = []
    for name, stored in schema.items():
        if name in numbers:
            if not (stored.is_numeric() or stored == pl.Null):
                raise UserError(f"{shown}: the column {name} holds no numbers. {advice}")
            wanted: type[pl.DataType] = getattr(pl, numbers[name])
        elif name in texts:
            if stored.is_nested():
                raise UserError(f"{shown}: the column {name} holds no texts. {advice}")
            wanted = pl.String
        else:
            continue
        if stored != wanted:
            casts.append(pl.col(name).cast(wanted))
    return casts

"""Columns that the tables of a run need, and their types."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, cast

from harness.errors import UserError
from harness.runs.folder import Kind
from harness.runs.record_types import columns
from harness.runs.rows import Call, Episode
from harness.util.formatting import printable, shortened

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
_WHOLE: dict[Kind, tuple[str, ...]] = {
    "episodes": (
        *("step", "phase", "task_id", "cluster", "outcome"),
        *("transitions", "trained_transitions", "prompt_tokens", "response_tokens"),
    ),
    "transitions": ("step", "phase", "role", "trained"),
    "steps": ("step",),
}
"""Columns that need a value in every row."""
_COUNTS = (
    *("rewrites", "transitions", "trained_transitions"),
    *("prompt_tokens", "response_tokens", "trained_tokens"),
)
_TEXTS = ("phase", "task_id", "cluster", "difficulty", "outcome", "reward_version", "role")
"""Columns of texts for which integers are read as texts."""
_NUMBERS: dict[Kind, dict[str, str]] = {
    "episodes": {
        "step": "Int64",
        "session": "Int64",
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
"""Columns of numbers that are cast to one type in polars, because tables of runs are joined."""
_PUBLISHED: dict[Kind, dict[str, str]] = {
    "episodes": {"answer_hash": "string", "framework_s": "double"},
    "transitions": {"response_tokens": "int64", "reward": "double"},
    "steps": {},
}
"""Columns that only published copies or older tables have, with their Arrow types."""
_HELD = {
    "int64": "numbers",
    "double": "numbers",
    "string": "text",
    "bool": "true or false",
    "list<string>": "lists of texts",
    "list<int32>": "lists of numbers",
    "list<float>": "lists of numbers",
}
"""What a column must hold, by its Arrow type."""
_TYPE_CHARS = 60
"""Longest name of a type in a message; a table may have a deeply nested one."""


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
        UserError: A column is missing, or has a type that readers cannot use.
    """
    import polars as pl

    if missing := sorted(_NEEDED[kind].difference(schema)):
        more = f" and {len(missing) - 4} more" if len(missing) > 4 else ""
        raise UserError(f"{shown} has no column {', '.join(missing[:4])}{more}. {advice}")
    arrow_types = _arrow_types(kind, schema)
    casts: list[pl.Expr] = []
    for name, stored in schema.items():
        arrow = arrow_types.get(name)
        if arrow is None:
            continue
        if not _fits(name, stored, arrow):
            found = shortened(str(stored), _TYPE_CHARS, kept=_TYPE_CHARS)
            raise UserError(
                f"{shown}: the column {printable(name)} must hold {_HELD[arrow]}, "
                f"not {printable(found)}. {advice}"
            )
        wanted = _wanted(kind, name, stored, arrow)
        if stored != wanted:
            casts.append(pl.col(name).cast(wanted))
    return casts


def check_values(kind: Kind, rows: pl.DataFrame, shown: str, advice: str) -> None:
    """Check that columns by which rows are selected and grouped have a value in every row.

    Raises:
        UserError: One of them has none in some row.
    """
    for name in _WHOLE[kind]:
        if lacking := rows[name].null_count():
            raise UserError(
                f"{shown}: the column {name} has no value in {lacking:,} of {len(rows):,} rows. "
                f"{advice}"
            )


def _wanted(
    kind: Kind, name: str, stored: pl.DataType, arrow: str
) -> pl.DataType | type[pl.DataType]:
    """Return the type that a column gets; its own where readers use any of its kind."""
    import polars as pl

    if name in _NUMBERS[kind]:
        wanted: type[pl.DataType] = getattr(pl, _NUMBERS[kind][name])
        return wanted
    if arrow == "string" and not isinstance(stored, pl.List):
        return pl.String
    if stored != pl.Null:
        return stored
    if arrow.startswith("list"):
        return pl.List(pl.String if arrow == "list<string>" else pl.Float64)
    if arrow == "bool":
        return pl.Boolean
    return pl.Int64 if arrow == "int64" else pl.Float64


def _arrow_types(kind: Kind, schema: Mapping[str, pl.DataType]) -> dict[str, str]:
    """Return the Arrow types of a table's known columns."""
    if kind == "steps":
        # A trainer's figures have names of its own, and all are numbers.
        return dict.fromkeys(schema, "double")
    return columns(Episode if kind == "episodes" else Call) | _PUBLISHED[kind]


def _fits(name: str, stored: pl.DataType, arrow: str) -> bool:
    """Return whether readers can use a stored type for a column of this Arrow type."""
    import polars as pl

    if stored == pl.Null:
        return True
    if arrow in ("int64", "double"):
        return stored.is_numeric()
    if arrow == "bool":
        return stored == pl.Boolean
    if arrow == "string":
        # Published archives hold the figures by role as lists.
        if name == "by_role" and isinstance(stored, pl.List):
            return True
        numbered = name in _TEXTS and stored.is_integer()
        return numbered or isinstance(stored, (pl.String, pl.Categorical, pl.Enum))
    if not isinstance(stored, pl.List):
        return False
    inner = cast("pl.DataType", stored.inner)
    if arrow == "list<string>":
        return inner in (pl.String, pl.Categorical, pl.Null)
    return inner.is_numeric() or inner == pl.Null

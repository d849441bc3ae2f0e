"""Parse a line of a row log, and check that it is a row of its table.

Rows of older versions lack newer columns, so only columns that every reader needs are required.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from harness.errors import UserError
from harness.runs.record_types import columns
from harness.runs.rows import Call, Episode
from harness.util.formatting import shown
from harness.util.parsing import finite_or_null, parse_json

_ROW_TYPES: Mapping[str, type] = {"episodes": Episode, "transitions": Call}
_REQUIRED: Mapping[str, frozenset[str]] = {
    "episodes": frozenset(
        {
            *("step", "phase", "task_id", "outcome"),
            *("transitions", "trained_transitions", "prompt_tokens", "response_tokens"),
        }
    ),
    "transitions": frozenset({"step", "phase", "role", "trained"}),
    "steps": frozenset({"step", "data"}),
}
"""Columns that must have a value in every row."""
_NULLABLE: Mapping[str, frozenset[str]] = {
    "episodes": frozenset({"reward", "reward_reason", "first_reward", "rewrites", "elapsed_s"})
}
"""Columns that must exist in every row, and may be null."""
_PHASES = ("train", "val")


def parse_row(line: bytes, kind: str, path: Path, number: int) -> dict[str, Any]:
    """Return the row in a line of a log of `episodes`, `transitions` or `steps`.

    Args:
        number: The line's number in the file, from 1, for the message.

    Raises:
        UserError: The line is no row, lacks a column that readers need, or has a wrong value.
    """
    try:
        row = parse_json(line)
    except ValueError:  # no JSON, or no text
        row = None
    wrong = _fault(row, kind) if isinstance(row, dict) else "it is no row"
    if wrong is None:
        return dict(row)
    raise UserError(
        f"line {number} of {path} is damaged: {wrong}. Restore the file, or delete the line"
    )


def _fault(row: Mapping[str, Any], kind: str) -> str | None:
    """Return what is wrong with a row, or None."""
    for name in _present(kind):
        if name not in row:
            return f"it has no {name}"
    required = _REQUIRED[kind]
    for name, fits in _checks(kind).items():
        value = row.get(name)
        is_right = name not in required if value is None else fits(value)
        if not is_right:
            return f"its {name} is {shown(value)}"
    if kind != "steps" and row["phase"] not in _PHASES:
        return f"its phase is {shown(row['phase'])}"
    return None


@cache
def _present(kind: str) -> list[str]:
    """Return the columns that a row needs, with a value or with null."""
    return sorted(_REQUIRED[kind] | _NULLABLE.get(kind, frozenset()))


@cache
def _checks(kind: str) -> dict[str, Callable[[Any], bool]]:
    """Return a check of each column's values."""
    if kind == "steps":
        return {"step": _is_int64, "data": lambda value: isinstance(value, dict)}
    return {name: _CHECKS[of_arrow] for name, of_arrow in columns(_ROW_TYPES[kind]).items()}


def _is_int64(value: object) -> bool:
    return type(value) is int and -(2**63) <= value < 2**63


def _is_number(value: object) -> bool:
    return type(value) in (int, float) and finite_or_null(value) is not None


def _is_text(value: object) -> bool:
    """Return whether a value is text without lone surrogates, which tables cannot store."""
    if not isinstance(value, str):
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _is_list(value: object, types: Collection[type]) -> bool:
    return isinstance(value, list) and set(map(type, value)) <= set(types)


def _are_texts(value: Any) -> bool:
    return _is_list(value, (str,)) and all(map(_is_text, value))


def _are_int32(value: Any) -> bool:
    if not _is_list(value, (int,)):
        return False
    return not value or (min(value) >= -(2**31) and max(value) < 2**31)


def _are_numbers(value: Any) -> bool:
    # Numbers that are not finite were parsed as null.
    if not _is_list(value, (int, float, type(None))):
        return False
    return all(number is None or _is_number(number) for number in value)


_CHECKS: Mapping[str, Callable[[Any], bool]] = {
    "int64": _is_int64,
    "double": _is_number,
    "string": _is_text,
    "bool": lambda value: isinstance(value, bool),
    "list<string>": _are_texts,
    "list<int32>": _are_int32,
    "list<float>": _are_numbers,
}
"""Return whether a value fits a column, by the column's Arrow type."""

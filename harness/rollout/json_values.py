"""Convert arguments, texts and states to values that records can store."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from harness.contracts.environments import Tool
from harness.records import JSON
from harness.util.json_schema import SchemaFault, find_mismatch

STATE_BYTES = 1 << 18
"""Most bytes of a session's final state, as JSON."""


def parsed(given: Mapping[str, object] | str) -> tuple[dict[str, Any], str]:
    """Return arguments as an object, and the problem if they are none; empty otherwise."""
    if not isinstance(given, str):
        return _storable_in(dict(given)), ""
    try:
        read = json.loads(given)
    except (ValueError, RecursionError) as error:
        return {"": storable(given)}, f"are no JSON ({str(error)[:100]})"
    if not isinstance(read, dict):
        return {"": storable(given)}, "are no JSON object"
    return _storable_in(read), ""


def plain_state(left: object) -> Mapping[str, JSON] | None:
    """Return a session's final state as plain data.

    Raises:
        TypeError: The state is no JSON object.
        ValueError: It is too large, or has a number that JSON lacks.
    """
    if left is None:
        return None
    if not isinstance(left, Mapping):
        raise TypeError(
            f"left {type(left).__name__} behind, not a mapping from names to plain data"
        )
    text = json.dumps(dict(left), allow_nan=False)
    if len(text) > STATE_BYTES:
        raise ValueError(
            f"left a state of {len(text):,} bytes behind, which is more than {STATE_BYTES:,}"
        )
    state: dict[str, JSON] = _storable_in(json.loads(text))
    return state


def misfit(given: Mapping[str, object], tool: Tool) -> str:
    """Return why arguments do not fit a tool's schema; empty if they fit."""
    try:
        found = find_mismatch(dict(given), tool.parameters)
    except SchemaFault as fault:
        return f"cannot be checked: the tool's schema {fault}"
    if found is None:
        return ""
    place = f" at {found.place}" if found.place else ""
    return f"do not fit{place}: {found.message}"


def _storable_in(value: object) -> Any:
    """Return the value with `storable` applied to every text in it."""
    if isinstance(value, str):
        return storable(value)
    if isinstance(value, dict):
        return {storable(str(key)): _storable_in(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_storable_in(item) for item in value]
    return value


def storable(text: str) -> str:
    """Return text that UTF-8 can store: lone surrogates, which it cannot encode, become escapes.

    It calls `str.encode` itself, because a subclass may override the method.
    """
    return str.encode(text, "utf-8", "backslashreplace").decode()

"""Convert arguments, texts and states to values that records can store."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from harness.contracts.environments import Tool
from harness.records import JSON
from harness.util.formatting import shortened
from harness.util.json_schema import SchemaFault, find_mismatch
from harness.util.parsing import LEVELS

STATE_BYTES = 1 << 18
"""Most bytes of a session's final state, as JSON."""
PLACE_CHARS = 100
"""Most characters that a message shows of the place of a value."""


class _Unstorable(ValueError):
    """A value that JSON cannot hold; the message names its place and its type."""


def parsed(given: Mapping[str, object] | str) -> tuple[dict[str, Any], str]:
    """Return arguments as an object, and the problem if they are none; empty otherwise.

    In the object, the type in angle brackets replaces an argument that JSON cannot hold.
    """
    if not isinstance(given, str):
        return _storable_arguments(given)
    try:
        read = json.loads(given)
    except (ValueError, RecursionError) as error:
        return {"": storable(given)}, f"are no JSON ({str(error)[:100]})"
    if not isinstance(read, dict):
        return {"": storable(given)}, "are no JSON object"
    return _storable_arguments(read)


def _storable_arguments(given: Mapping[str, object]) -> tuple[dict[str, Any], str]:
    arguments: dict[str, Any] = {}
    wrong = ""
    for key, value in dict(given).items():
        name = storable(str(key))
        try:
            arguments[name] = _storable_in(value, name)
        except _Unstorable as error:
            arguments[name] = f"<{_type_name(value)}>"
            wrong = wrong or f"cannot be sent as JSON: {error}"
    return arguments, wrong


def plain_state(left: object) -> Mapping[str, JSON] | None:
    """Return a session's final state as plain data.

    Raises:
        TypeError: The state is no JSON object.
        ValueError: It is too large, nested too deeply, or has a number that JSON lacks.
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
    state: dict[str, JSON] = _storable_in(json.loads(text), "state")
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


def _storable_in(value: object, place: str, levels: int = LEVELS) -> Any:
    """Return a value as plain data, with `storable` applied to every text in it.

    Args:
        place: Where the value is, for messages.
        levels: Most levels of nesting.

    Raises:
        _Unstorable: A value in it has a type that JSON lacks, or is nested too deeply.
    """
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return storable(value)
    if isinstance(value, int | float):
        return _plain_number(value, place)
    if not isinstance(value, Mapping | list | tuple):
        raise _Unstorable(f"{_shown(place)} is of type {_type_name(value)}")
    if not levels:
        raise _Unstorable(f"{_shown(place)} is nested more than {LEVELS} levels deep")
    if isinstance(value, Mapping):
        items: dict[str, Any] = {}
        for key, item in value.items():
            name = storable(str(key))
            items[name] = _storable_in(item, f"{place}.{name}", levels - 1)
        return items
    entries: list[Any] = []
    for position, item in enumerate(value):
        entries.append(_storable_in(item, f"{place}.{position}", levels - 1))
    return entries


def _plain_number(number: float, place: str) -> int | float:
    """Return the number without a type of its own, which could not be copied or written as JSON."""
    if isinstance(number, float):
        return float.__float__(number)
    plain = int.__int__(number)
    try:
        str(plain)
    except ValueError:  # Python limits the digits that it writes and reads
        raise _Unstorable(f"{_shown(place)} is an integer with too many digits") from None
    return plain


def _type_name(value: object) -> str:
    return storable(str(type(value).__name__))


def _shown(place: str) -> str:
    """Return the place of a value, cut to what fits into a message."""
    return repr(shortened(place, PLACE_CHARS, kept=PLACE_CHARS))


def storable(text: str) -> str:
    """Return text that UTF-8 can store: lone surrogates, which it cannot encode, become escapes.

    It calls `str.encode` itself, because a subclass may override the method.
    """
    return str.encode(text, "utf-8", "backslashreplace").decode()

"""The canonical form of a chat completion request, in which requests are compared."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import orjson

SHOWN_CHARS = 500
"""Characters of a parameter's JSON that a record keeps; a longer value is kept as its hash."""


def canonical_parameters(parameters: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return a request's parameters with accepted differences undone.

    Args:
        parameters: The request without its messages.

    Returns:
        The parameters, and the names of the accepted differences that it had.
    """
    canonical = dict(parameters)
    accepted: list[str] = []
    if "max_completion_tokens" in canonical and "max_tokens" not in canonical:
        canonical["max_tokens"] = canonical.pop("max_completion_tokens")
        accepted.append("max_completion_tokens")
    if canonical.get("stream") is False:
        del canonical["stream"]
        accepted.append("stream_false")
    return canonical, accepted


def request_digest(messages: Sequence[Mapping[str, Any]], parameters: Mapping[str, Any]) -> str:
    """Return the SHA-256 of a request in its canonical form, as 64 hex digits."""
    canonical, _ = canonical_parameters(parameters)
    return hashlib.sha256(_json({"messages": list(messages), **canonical})).hexdigest()


def shown_parameters(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return canonical parameters for a record, each value over `SHOWN_CHARS` as its hash."""
    canonical, _ = canonical_parameters(parameters)
    shown: dict[str, Any] = {}
    for name, value in canonical.items():
        written = _json(value)
        if len(written) <= SHOWN_CHARS:
            shown[name] = value
        else:
            shown[name] = f"sha256:{hashlib.sha256(written).hexdigest()}"
    return shown


def _json(value: object) -> bytes:
    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS | orjson.OPT_NON_STR_KEYS)

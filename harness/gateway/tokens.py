"""Read and check token ids and log-probabilities of an answer. Never tokenizes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from harness.util.formatting import shortened

_ROUNDING = 1e-6
"""Largest accepted log-probability above 0: engines compute them in 32 bits or fewer."""
_NO_LOGPROB = -9999.0
"""vLLM's replacement for minus infinity, which JSON lacks. A sampled token cannot have it."""
_COUNT_LIMIT = 2**31
"""Upper bound of token ids and counts; `transitions.parquet` stores ids in 32 bits."""


def ids_of(fields: Mapping[str, object], name: str) -> list[int] | None:
    """Return the token ids in a field; None if it is missing.

    Raises:
        ValueError: The field holds no token ids.
    """
    value = fields.get(name)
    if value is None:
        return None
    if not isinstance(value, list):
        raise ValueError(f"{name} must be a list, not {shown(value)}")
    # A call has thousands, so look for the invalid one only after a check of all.
    if value and (set(map(type, value)) != {int} or min(value) < 0 or max(value) >= _COUNT_LIMIT):
        wrong = next(one for one in value if not _is_count(one))
        raise ValueError(
            f"{name} must hold whole numbers from 0 to {_COUNT_LIMIT - 1}, not {shown(wrong)}"
        )
    return value


def logprobs_of(choice: Mapping[str, Any]) -> list[float] | None:
    """Return the log-probabilities of a choice; None if it has none.

    Raises:
        ValueError, KeyError, TypeError: They are none.
    """
    content = (choice.get("logprobs") or {}).get("content")
    return None if content is None else [_logprob(item["logprob"]) for item in content]


def _logprob(value: object) -> float:
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or not _NO_LOGPROB < value <= _ROUNDING
    ):
        raise ValueError(
            f"a log-probability must be a number from {_NO_LOGPROB:.0f} (exclusive) to 0, "
            f"not {shown(value)}"
        )
    return float(value)


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value < _COUNT_LIMIT  # `isinstance` would take True for 1


def shown(value: object) -> str:
    """Return a value for a message, shortened if it is long."""
    return shortened(repr(value), 60)

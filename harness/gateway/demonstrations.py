"""Few-shot demonstrations: messages that the gateway inserts into the calls of a role.

The agent does not know of them. A transition records the request as the agent sent it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from harness.gateway.failures import Refusal
from harness.records import Demonstrations


def checked_demonstrations(value: Any) -> Demonstrations:
    """Check the demonstrations of an attempt, by role, and return them.

    Raises:
        Refusal: `bad_request`: one of them is not a list of a user and an assistant message.
    """
    if not isinstance(value, dict):
        raise Refusal("bad_request", "demonstrations must be an object with a list for each role")
    for role, shown in value.items():
        if not isinstance(shown, list) or not all(_is_pair(pair) for pair in shown):
            raise Refusal(
                "bad_request",
                f"demonstrations of {role!r} must be lists of pairs: a user and an assistant "
                "message",
            )
    return value


def with_demonstrations(
    messages: Sequence[Mapping[str, Any]], shown: Sequence[Sequence[Mapping[str, Any]]]
) -> list[Mapping[str, Any]] | None:
    """Return messages with demonstrations before the first user message.

    A conversation in progress is unchanged after that, including tool calls and their results.

    Returns:
        None if nothing is inserted: there are no demonstrations, or no user message.
    """
    if not shown:
        return None
    roles = [message.get("role") for message in messages]
    if "user" not in roles:
        return None
    first_of_user = roles.index("user")
    inserted: list[Mapping[str, Any]] = []
    for pair in shown:
        inserted += pair
    return [*messages[:first_of_user], *inserted, *messages[first_of_user:]]


def _is_pair(pair: object) -> bool:
    if not isinstance(pair, list) or not all(isinstance(message, dict) for message in pair):
        return False
    return [message.get("role") for message in pair] == ["user", "assistant"]

"""Few-shot demonstrations: messages that the gateway inserts into the calls of a role.

The agent does not know of them. A transition records the request as the agent sent it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from harness.gateway.failures import Refusal
from harness.records import Demonstrations


def checked_demonstrations(value: Any) -> Demonstrations:
    """Return demonstrations by role as they came with an attempt.

    Raises:
        Refusal: `bad_request`: they are not lists of a user message and an assistant message each.
    """
    if not isinstance(value, dict):
        raise Refusal("bad_request", "demonstrations must be an object of lists by role")
    for role, shown in value.items():
        if not isinstance(shown, list) or not all(_is_pair(pair) for pair in shown):
            raise Refusal(
                "bad_request",
                f"demonstrations of {role!r} must be lists of two messages: of user and assistant",
            )
    return value


def with_demonstrations(
    messages: Sequence[Mapping[str, Any]], shown: Sequence[Sequence[Mapping[str, Any]]]
) -> list[Mapping[str, Any]] | None:
    """Return messages with demonstrations before the first user message.

    A conversation that began stays as it is, also with tool calls and their results.

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

"""An incoming request: read its body within limits, and detect that the agent disconnected."""

from __future__ import annotations

from typing import Any

import orjson
from starlette.types import Receive, Scope

from harness.gateway.failures import Refusal
from harness.gateway.protocols import Spoken

MAX_DEPTH = 100
"""Most levels of nesting in a request. orjson reads 1024 levels but writes only 254."""


class Request:
    """One request.

    Args:
        max_bytes: Largest body.
        spoken: The protocol of a call, if not chat completions.
    """

    def __init__(
        self, scope: Scope, receive: Receive, max_bytes: int, spoken: Spoken | None = None
    ) -> None:
        self.spoken = spoken
        self._scope = scope
        self._receive = receive
        self._max_bytes = max_bytes

    async def asked(self) -> dict[str, Any]:
        """Return the chat completion request of a call.

        Raises:
            Refusal: The request is invalid or incomplete.
        """
        asked = await self.json()
        if self.spoken is not None:
            asked = self.spoken.asked(asked)
        messages = asked.get("messages")
        if not isinstance(messages, list) or not all(
            isinstance(message, dict) for message in messages
        ):
            raise Refusal("bad_request", "messages must be a list of objects")
        return asked

    async def json(self) -> dict[str, Any]:
        """Return the body, a JSON object.

        Raises:
            Refusal: The body is no JSON object, too large, nested too deep or incomplete.
        """
        body = bytearray()
        more = True
        while more:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise self._ended()
            body += message.get("body", b"")
            if len(body) > self._max_bytes:
                raise Refusal("body_too_large", f"the body has more than {self._max_bytes} bytes")
            more = message.get("more_body", False)
        try:
            value = orjson.loads(body)
        except orjson.JSONDecodeError as error:
            raise Refusal("bad_request", f"the body is not JSON: {error}") from error
        if not isinstance(value, dict):
            raise Refusal("bad_request", "the body is not a JSON object")
        # Counting brackets costs microseconds, and few bodies have enough to nest too deep.
        if body.count(b"[") + body.count(b"{") > MAX_DEPTH and _deeper(value, MAX_DEPTH):
            raise Refusal("bad_request", f"the body is nested more than {MAX_DEPTH} levels deep")
        return value

    async def ended(self) -> Refusal:
        """Wait until the agent disconnects before its answer is complete; call after the body."""
        while (await self._receive())["type"] != "http.disconnect":
            pass
        return self._ended()

    def _ended(self) -> Refusal:
        code, why = self._scope["state"].get("cut_off", ("client_disconnect", "the agent hung up"))
        return Refusal(code, why)


def _deeper(value: Any, levels: int) -> bool:
    """Return whether lists and objects are nested more than so many levels deep."""
    # Level by level, because a recursion would fail on exactly the values to detect.
    containers = [value]
    for _ in range(levels):
        inner: list[Any] = []
        for container in containers:
            inner += container.values() if isinstance(container, dict) else container
        containers = [item for item in inner if isinstance(item, dict | list)]
        if not containers:
            return False
    return True

"""Send responses to agents: whole, as a stream, or as an error."""

from __future__ import annotations

from typing import Any, Literal

from starlette.types import Send

from harness.gateway.failures import Refusal
from harness.gateway.protocols import Spoken
from harness.gateway.wire import written

_JSON = [(b"content-type", b"application/json")]
_EVENTS = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")]


class AgentResponse:
    """The response to one call of an agent, sent whole or in parts."""

    def __init__(self, send: Send, spoken: Spoken | None) -> None:
        self._send = send
        self._spoken = spoken
        self._begun: Literal["", "whole", "parts"] = ""

    @property
    def begun(self) -> bool:
        """Whether a part of the response has been sent."""
        return bool(self._begun)

    def formed(self, raw: bytes, completion: dict[str, Any]) -> tuple[bytes, bool]:
        """Return a whole answer in the requested form, and whether this is a stream of events."""
        return (raw, False) if self._spoken is None else self._spoken.answered(completion)

    async def reply(self, body: bytes, streamed: bool) -> None:
        """Send a whole answer."""
        await self.whole(200, _EVENTS if streamed else _JSON, body)

    async def whole(self, status: int, headers: list[tuple[bytes, bytes]], body: bytes) -> None:
        """Send an answer with its length."""
        self._begun = "whole"
        length = (b"content-length", str(len(body)).encode())
        await self._send(
            {"type": "http.response.start", "status": status, "headers": [*headers, length]}
        )
        await self._send({"type": "http.response.body", "body": body})

    async def part(self, body: bytes) -> None:
        """Send a part of a stream; the first one begins the answer."""
        if not self._begun:
            self._begun = "parts"
            await self._send({"type": "http.response.start", "status": 200, "headers": _EVENTS})
        await self._send({"type": "http.response.body", "body": body, "more_body": True})

    async def end(self) -> None:
        """End a stream."""
        await self._send({"type": "http.response.body", "body": b""})

    async def refuse(self, refusal: Refusal) -> None:
        """Send an error, as an event where a stream has begun."""
        if not self._begun:
            body = self._spoken.refused(refusal.body) if self._spoken else refusal.body
            await self.whole(refusal.status, refusal.headers, body)
        elif self._begun == "parts":
            # The status has gone out as 200: an error event is what clients of a stream understand.
            await self.part(b"data: " + refusal.body + b"\n\n")
            await self.end()


def as_stream(completion: dict[str, Any]) -> bytes:
    """Return a whole completion as a stream: all of it in one chunk, and the end."""
    (choice,) = completion["choices"]
    message = choice.pop("message")
    calls = message.pop("tool_calls", ())
    if calls:
        message["tool_calls"] = [{"index": position, **call} for position, call in enumerate(calls)]
    chunk = {
        **completion,
        "object": "chat.completion.chunk",
        "choices": [{**choice, "delta": message}],
    }
    return b"data: " + written(chunk) + b"\n\ndata: [DONE]\n\n"

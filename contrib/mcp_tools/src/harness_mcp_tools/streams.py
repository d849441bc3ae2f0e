"""Streams between a transport and the SDK's session, and replacements of overlong messages."""

from __future__ import annotations

import asyncio

import anyio
from mcp.shared.message import SessionMessage
from mcp.types import ErrorData, JSONRPCError, JSONRPCMessage

MAX_BYTES = 4 << 20
"""Most bytes of one message of a server; a longer one is discarded."""
TOO_LONG = -32099
"""Error code for an overlong message, in JSON-RPC's range for implementations."""


class Streams:
    """Both ends of a connection's two streams of messages.

    Attributes:
        last_line: The server's last line outside of its messages.
        ended: Set when no further message follows.
    """

    def __init__(self) -> None:
        self.incoming, self.read = anyio.create_memory_object_stream[SessionMessage | Exception](0)
        self.write, self.outgoing = anyio.create_memory_object_stream[SessionMessage](0)
        self.last_line = ""
        self.ended = asyncio.Event()


def too_long(request: int | str) -> SessionMessage:
    """Return an error for a request with an overlong answer."""
    reason = ErrorData(code=TOO_LONG, message=f"more than {MAX_BYTES >> 20} MiB")
    return SessionMessage(JSONRPCMessage(JSONRPCError(jsonrpc="2.0", id=request, error=reason)))

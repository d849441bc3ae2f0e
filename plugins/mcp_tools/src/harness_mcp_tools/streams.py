"""What a transport and the SDK's session hand each other, and what stands for a message that is too long."""

from __future__ import annotations

import asyncio

import anyio
from mcp.shared.message import SessionMessage
from mcp.types import ErrorData, JSONRPCError, JSONRPCMessage

MAX_BYTES = 4 << 20
"""Of one message of a server; a longer one is not held."""
TOO_LONG = -32099
"""Code of the error that stands for one, of those that JSON-RPC leaves to implementations."""


class Streams:
    """Both ends of a connection's two streams of messages.

    Attributes:
        said: The last line that the server said beside its messages.
        ended: Set once no message comes any more.
    """

    def __init__(self) -> None:
        self.incoming, self.read = anyio.create_memory_object_stream[SessionMessage | Exception](0)
        self.write, self.outgoing = anyio.create_memory_object_stream[SessionMessage](0)
        self.said = ""
        self.ended = asyncio.Event()


def too_long(request: int | str) -> SessionMessage:
    """The answer to a request whose own is too long."""
    said = ErrorData(code=TOO_LONG, message=f"more than {MAX_BYTES >> 20} MiB")
    return SessionMessage(JSONRPCMessage(JSONRPCError(jsonrpc="2.0", id=request, error=said)))

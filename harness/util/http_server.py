"""uvicorn, with bounds on unfinished work at the other end of a connection.

uvicorn limits the time of idle connections (`timeout_keep_alive`, from the first answer on) and the
number of connections, which refuses `/health` too (`limit_concurrency`). Limits on the time of a
request's header and body are an open request since 2018 (Kludex/uvicorn#157), and only its other,
slower parser bounds the size of a header. No other server has all limits: hypercorn restarts its
`read_timeout` with every byte and parses in Python, granian has no limit for bodies and stops
accepting when it is full, aiohttp bounds the size of headers and no time. This module therefore
subclasses uvicorn's protocol through its existing callbacks. No request has a timer: a sweep once a
second counts how long each peer has owed data.
"""

from __future__ import annotations

import asyncio
import json
import logging
import resource
from collections import Counter, OrderedDict
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

logger = logging.getLogger(__name__)

SPARE = 64
"""File descriptors kept free of connections, for the process itself and for newly accepted
connections.
"""
TICKS = 10
"""Ticks of uvicorn between two sweeps: one second. Ticks pause with the process, so that it reads
waiting data before it judges a peer late.
"""
MOST = 16_384
"""Most concurrent connections, if there are file descriptors for them."""
LOG_S = 10
"""Shortest time between two log lines about ended connections."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of a connection. Only a connection that passes one of them is ended.

    Times are counted in whole seconds, with up to one second of tolerance.

    Attributes:
        header_s: From a request's first byte to the end of the header.
        body_s: From the end of the header to the end of the body.
        idle_s: From a connection's start, or an answer, to the next request.
        unread_s: For a peer to read some of the waiting data. A slow reader is not ended.
        rest_s: For a peer to hang up, or to send the rest of a request that already has its answer.
        header_bytes: Most bytes of a request line with its headers.
        headers: Most headers of a request.
        connections: Most concurrent connections. One more closes the connection with the oldest
            unfinished request, or else the one that has been idle for longest.
    """

    header_s: float = 10.0
    body_s: float = 60.0
    idle_s: int = 60
    unread_s: float = 60.0
    rest_s: float = 5.0
    header_bytes: int = 64 * 2**10
    headers: int = 100
    connections: int = MOST


def raise_descriptors(connections: int = MOST) -> None:
    """Raise this process's limit of file descriptors for so many connections, if allowed."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 2 * connections + SPARE
    if hard != resource.RLIM_INFINITY:
        wanted = min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(ValueError, OSError):  # macOS has a lower limit than the hard one
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def fitting(connections: int = MOST) -> int:
    """Return the number of connections that file descriptors allow, at most `connections`.

    Each call needs two.
    """
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return (
        connections
        if soft == resource.RLIM_INFINITY
        else max(8, min(connections, (soft - SPARE) // 2))
    )


class BoundedServer(uvicorn.Server):
    """A uvicorn server that ends connections which pass its limits.

    If it ends a request that the application is already handling, the request's
    `scope["state"]["cut_off"]` holds a code (`bad_request`, `client_disconnect` or `queue_full`)
    and a sentence, and the application receives `http.disconnect`.

    Args:
        app: The ASGI application.
        **options: Further options of `uvicorn.Config`.
    """

    def __init__(self, app: Any, limits: Limits, **options: Any) -> None:
        config = uvicorn.Config(
            app,
            http=_Connection,
            ws="none",
            access_log=False,
            timeout_keep_alive=limits.idle_s,
            timeout_graceful_shutdown=1,
            # A burst of new connections needs room before any can be ended.
            backlog=min(2048, max(8, limits.connections // 2)),
            **options,
        )
        super().__init__(config)
        self.server_state = self._connections = _Connections(limits)

    async def on_tick(self, counter: int) -> bool:
        """Count ticks; uvicorn calls this ten times a second."""
        if counter % TICKS == 0:
            self._connections.sweep()
        return await super().on_tick(counter)


class _Connections(ServerState):
    """A server's connections, in the order in which they can be closed."""

    def __init__(self, limits: Limits) -> None:
        super().__init__()
        self.limits = limits
        self.unfinished: OrderedDict[_Connection, None] = OrderedDict()
        """Connections with an incomplete request, in order of its first byte."""
        self.idle: OrderedDict[_Connection, None] = OrderedDict()
        """Connections that have their answer, in order of the answers."""
        self.ended: Counter[str] = Counter()
        """Reasons of ended connections since the last log line."""
        self._sweeps = 0

    def sweep(self) -> None:
        """Check every connection. Runs once a second."""
        for connection in list(self.connections):
            assert isinstance(connection, _Connection)
            connection.check()
        self._sweeps += 1
        if self.ended and self._sweeps % LOG_S == 0:
            logger.warning(
                "ended connections: %s",
                "; ".join(f"{n}: {why}" for why, n in self.ended.most_common()),
            )
            self.ended.clear()

    def make_room(self) -> None:
        """Close one connection if the newest one exceeds the limit."""
        if len(self.connections) > self.limits.connections:
            waiting = self.idle if self.idle and len(self.unfinished) == 1 else self.unfinished
            connection, _ = waiting.popitem(last=False)
            connection.give_way()


class _Refused(Exception):
    """Stop the parser."""


class _Connection(HttpToolsProtocol):
    """uvicorn's protocol, which also records what its peer has yet to send, and since when."""

    def __init__(
        self,
        config: uvicorn.Config,
        server_state: _Connections,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._all = server_state
        self._limits = server_state.limits
        self._part = "header"
        """The expected part: `header`, `body`, `rest` of a request that has its answer, or none."""
        self._kept = 0
        """Bytes since the parser's last callback, which it still holds."""
        self._over = False
        """Whether further data is discarded."""
        self._refusal = (400, "the request is no HTTP")
        self._owed = ""
        self._owed_s = 0
        self._unread = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._expect("header")
        self._all.make_room()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._all.unfinished.pop(self, None)
        self._all.idle.pop(self, None)

    def data_received(self, data: bytes) -> None:
        if self._over:
            return
        if not self._part:  # also for data without a request: empty lines, or data after an upgrade
            self._expect("header")
        self._kept += len(data)
        super().data_received(data)
        if self._kept > self._limits.header_bytes and not self._over:
            # A header, or data that the parser reads as one: a chunk's extension, trailers after
            # the last chunk.
            self._refuse(*self._header_too_long())

    def on_message_begin(self) -> None:
        super().on_message_begin()
        if self._part != "header":
            self._expect("header", kept=1)  # in the same piece as the end of the previous request

    def on_headers_complete(self) -> None:
        if self._calling:
            raise _Refused  # the next request is in this piece
        limits = self._limits
        if self._kept > limits.header_bytes:  # may include part of the body
            size = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
            if size > limits.header_bytes:
                self._refusal = self._header_too_long()
                raise _Refused
        if len(self.headers) > limits.headers:
            self._refusal = (431, f"the request has more than {limits.headers} headers")
            raise _Refused
        super().on_headers_complete()
        self._expect("body")

    def on_body(self, body: bytes) -> None:
        self._kept = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self._expect("")

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._part == "body":
            self._expect("rest")
        elif not self._part:
            self._all.idle[self] = None

    def resume_writing(self) -> None:
        super().resume_writing()
        self._owed = ""  # the peer has read data

    def send_400_response(self, msg: str) -> None:
        """Send an error after the parser stopped; called by uvicorn."""
        self._refuse(*self._refusal)

    def check(self) -> None:
        """End the connection if its peer takes too long. Runs once a second."""
        limits = self._limits
        if self.transport.is_closing():
            owed, limit_s = "end", limits.unread_s
        elif self.flow.write_paused:
            owed, limit_s = "reading", limits.unread_s
        elif self._part == "header" and not self._calling:
            # A peer without processor time owes nothing between connecting and its first byte.
            owed, limit_s = (
                ("header", limits.header_s) if self._kept else ("request", limits.idle_s)
            )
        elif self._part == "body" and not self.flow.read_paused:
            # Paused: the application still has to read the received data.
            owed, limit_s = "body", limits.body_s
        elif self._part == "rest":
            owed, limit_s = "rest", limits.rest_s
        elif self in self._all.idle:
            # Uvicorn stops its own timer if the rest of a body follows the answer.
            owed, limit_s = "request", limits.idle_s
        else:
            owed, limit_s = "", 0.0
        before, self._unread = self._unread, self.transport.get_write_buffer_size()
        reads = owed in ("end", "reading") and self._unread < before
        if not owed or owed != self._owed or reads:
            self._owed, self._owed_s = owed, 0
            return
        self._owed_s += 1
        if self._owed_s < limit_s:
            return
        if owed in ("header", "body"):
            self._refuse(408, f"the request's {owed} was incomplete after {limit_s:g} s")
        else:
            if owed == "reading":
                self._cut_off("client_disconnect", f"what was sent was not read for {limit_s:g} s")
            self.transport.abort()

    def give_way(self) -> None:
        """Close at once, because there are too many connections."""
        # After at least two sweeps the delay is the peer's fault.
        code = "bad_request" if self._owed_s else "queue_full"
        self._cut_off(
            code, f"it made room for another: more than {self._limits.connections} connections"
        )
        self.transport.abort()

    @property
    def _calling(self) -> bool:
        """Return whether a request is complete and its answer is not."""
        return (
            self._part in ("", "header")
            and self.cycle is not None
            and not self.cycle.response_complete
        )

    def _expect(self, part: str, kept: int = 0) -> None:
        self._part, self._kept, self._owed = part, kept, ""
        if part:
            self._all.unfinished.setdefault(self, None)
            self._all.idle.pop(self, None)
        else:
            self._all.unfinished.pop(self, None)
            if self.cycle.response_complete:
                self._all.idle[self] = None

    def _header_too_long(self) -> tuple[int, str]:
        return 431, f"the request's header is longer than {self._limits.header_bytes} bytes"

    def _refuse(self, status: int, message: str) -> None:
        """Answer instead of the application and stop reading.

        A running answer becomes the last one.
        """
        self._over = True
        if self._calling:
            self.cycle.keep_alive = False
            return
        answered = self._part in ("body", "rest") and self.cycle.response_started
        self._cut_off("bad_request", message)
        if not self.transport.is_closing():
            if not answered:
                self.transport.write(_answer(status, message))
            # Not closed: a peer that is still sending would lose the answer with the connection.
            self.transport.write_eof()
        self._expect("rest")

    def _cut_off(self, code: str, why: str) -> None:
        self._all.ended[why] += 1
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.scope["state"]["cut_off"] = (code, why)
            self.cycle.disconnected = True
            self.cycle.message_event.set()


def _answer(status: int, message: str) -> bytes:
    """Return an error response in OpenAI's format."""
    error = {
        "message": message,
        "type": "invalid_request_error",
        "code": "bad_request",
        "param": None,
    }
    body = json.dumps({"error": error})
    return (
        f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\ncontent-type: application/json\r\n"
        f"content-length: {len(body)}\r\nconnection: close\r\n\r\n{body}"
    ).encode()

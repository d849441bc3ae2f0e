"""The gateway's own process: `python -m harness.gateway`.

Reads its settings as JSON from the first line of stdin.

Writes `{"port": N}` to stdout once it answers. Stdin stays open as long as the parent lives: its
end, or another parent process id, ends the gateway. (A parent-death signal would not do: Linux
sends it when the *thread* that started the child ends.)
"""

from __future__ import annotations

import asyncio
import dataclasses
import gc
import json
import os
import select
import socket
import sys
import threading
from typing import Any

from harness.gateway.app import GatewayApp
from harness.gateway.settings import GatewaySettings
from harness.util import start_trace
from harness.util.http_server import BoundedServer, Limits, fitting, raise_descriptors


class _AnnouncedServer(BoundedServer):
    """A server that writes its port to stdout once it listens."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started and sockets:
            # Objects created up to here live as long as the process. The thousand short-lived
            # objects of an answer would start a collection each; none of them is in a cycle.
            gc.freeze()
            gc.set_threshold(50_000, 10, 5)
            start_trace.mark("serves")
            sys.stdout.write(json.dumps({"port": sockets[0].getsockname()[1]}) + "\n")
            sys.stdout.flush()


def _end_with_parent() -> None:
    # The process id detects a dead parent even if its forked children hold the pipe open.
    parent = os.getppid()
    while os.getppid() == parent:
        readable, _, _ = select.select([sys.stdin.fileno()], [], [], 1.0)
        if readable and not os.read(sys.stdin.fileno(), 4096):
            break
    os._exit(0)


def main() -> None:
    """Read the settings, bind, and serve until a stop signal or the parent's end."""
    start_trace.born("gateway")
    raw: dict[str, Any] = json.loads(_first_line())
    threading.Thread(target=_end_with_parent, daemon=True).start()
    settings = GatewaySettings(**raw)
    raise_descriptors(settings.max_connections)
    settings = dataclasses.replace(settings, max_connections=fitting(settings.max_connections))
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((settings.host, settings.port))
    except OSError as error:
        sys.exit(f"cannot listen on {settings.host}:{settings.port}: {error.strerror}")
    limits = Limits(
        header_s=settings.header_timeout_s,
        body_s=settings.body_timeout_s,
        idle_s=settings.idle_timeout_s,
        unread_s=settings.unread_timeout_s,
        rest_s=min(Limits().rest_s, settings.body_timeout_s),
        header_bytes=settings.max_header_bytes,
        headers=settings.max_headers,
        connections=settings.max_connections,
    )
    server = _AnnouncedServer(
        GatewayApp(settings),
        limits,
        lifespan="on",
        interface="asgi3",
        log_level="error",  # uvicorn warns of each invalid request, and there may be thousands
        server_header=False,
        date_header=False,
        proxy_headers=False,
    )
    with asyncio.Runner(loop_factory=server.config.get_loop_factory()) as runner:
        runner.run(server.serve(sockets=[listener]))


def _first_line() -> bytes:
    # Unbuffered, so that nothing for the watching thread remains in a buffer.
    line = b""
    while not line.endswith(b"\n"):
        piece = os.read(sys.stdin.fileno(), 1)
        if not piece:
            sys.exit("no settings on stdin: start it as `harness.gateway.server` does")
        line += piece
    return line


if __name__ == "__main__":
    main()

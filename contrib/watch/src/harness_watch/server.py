"""Serve the page and its changes on loopback, as HTML and server-sent events."""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from operator import itemgetter

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import (
    HTMLResponse,
    JSONResponse,
    PlainTextResponse,
    Response,
    StreamingResponse,
)
from starlette.routing import Route

from harness.errors import EnvironmentProblem, UserError
from harness.util.http_server import BoundedServer, Limits
from harness_report.page import page
from harness_watch.view import EVERY_S, HERE, State, View

log = logging.getLogger(__name__)

HOST = "127.0.0.1"
NAMES = [HOST, "localhost"]
"""Host names that requests may use. Others come from pages of other sites (DNS rebinding)."""
BEAT = 15
"""Number of polls without news before a keep-alive line, which detects closed browsers."""
MOST_STREAMS = 64
"""Maximum number of concurrent event streams. It leaves connections free for new pages."""
CONNECTIONS = 256
POLICY = (
    "default-src 'none'; connect-src 'self'; img-src data:; style-src 'unsafe-inline'; "
    "script-src 'nonce-{}'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


def application(
    view: View, start: str = HERE, over: Callable[[], bool] = lambda: False
) -> Starlette:
    """Return the ASGI application.

    Args:
        start: The default place.
        over: Whether the server is about to end, with all event streams.
    """
    lock = asyncio.Lock()
    streams = OpenStreams()

    async def state(at: str) -> State:
        async with lock:  # one read at a time, for all clients
            return await asyncio.to_thread(view.look, at)

    def asked(request: Request) -> str:
        return request.query_params.get("at", start)

    async def show(request: Request) -> Response:
        found = (await state(asked(request))).found
        nonce = secrets.token_urlsafe(16)
        text = await asyncio.to_thread(page, {**found, "live": found["live"]._replace(nonce=nonce)})
        headers = {"content-security-policy": POLICY.format(nonce), "cache-control": "no-store"}
        return HTMLResponse(text.encode("utf-8", "replace"), headers=headers)

    async def events(request: Request) -> Response:
        at = asked(request)
        await state(at)  # refuse unknown places before the response begins
        return StreamingResponse(
            stream(at), media_type="text/event-stream", headers={"cache-control": "no-store"}
        )

    async def stream(at: str) -> AsyncIterator[str]:
        sent: State | None = None
        silent = 0
        with streams.opened() as wanted:
            while wanted() and not over():
                now = await state(at)
                silent = 0 if now is not sent else silent + 1
                if now is not sent:
                    yield f"data: {change(sent, now)}\n\n"
                elif silent % BEAT == 0:
                    yield ":\n\n"
                sent = now
                await asyncio.sleep(EVERY_S / 2)

    async def calls(request: Request) -> Response:
        asks = request.query_params

        def found() -> dict[str, object]:
            return view.opened(asked(request), asks.get("run", ""), asks.get("id", ""))

        async with lock:
            return JSONResponse(await asyncio.to_thread(found))

    async def missing(request: Request, error: Exception) -> Response:
        message = str(error) if isinstance(error, UserError) else "there is no such run"
        return PlainTextResponse(f"{message}\n", 404)

    routes = [Route("/", show), Route("/events", events), Route("/calls", calls)]
    guarded = Middleware(TrustedHostMiddleware, allowed_hosts=NAMES, www_redirect=False)
    handlers = dict.fromkeys((LookupError, ValueError, UserError), missing)
    return Starlette(routes=routes, middleware=[guarded], exception_handlers=handlers)


class OpenStreams:
    """The open event streams. Too many end the oldest; its browser reconnects."""

    def __init__(self) -> None:
        self._open: dict[object, None] = {}

    @contextmanager
    def opened(self) -> Iterator[Callable[[], bool]]:
        """Count a stream while it is open. The yielded function returns whether it may continue."""
        mine = object()
        self._open[mine] = None
        if len(self._open) > MOST_STREAMS:
            oldest = next(iter(self._open))
            del self._open[oldest]
        try:
            yield lambda: mine in self._open
        finally:
            self._open.pop(mine, None)


def change(sent: State | None, now: State) -> str:
    """Return the changes from the sent state to the current one, as JSON."""
    old = {} if sent is None else sent.blocks
    episodes = now.found["browser"]["episodes"]
    # After a reset the page starts from an empty list, so it needs all episodes again.
    reset = sent is not None and sent.era != now.era
    if sent is not None and not reset:
        # Also by run, because ids of episodes are unique only within a run.
        identity = itemgetter("run", "id")
        shown = set(map(identity, sent.found["browser"]["episodes"]))
        episodes = [episode for episode in episodes if identity(episode) not in shown]
    blocks = {name: html for name, html in now.blocks.items() if old.get(name) != html}
    news: dict[str, object] = {"blocks": blocks, "episodes": episodes, "reset": reset}
    if sent is None or sent.charts != now.charts:
        news["charts"] = now.found["charts"]
    return json.dumps(news, default=str, allow_nan=False)


def serve(view: View, start: str, port: int, opened: Callable[[str], None]) -> None:
    """Serve until Ctrl-C.

    Args:
        port: 0 takes a free one.
        opened: Given the page's address once it can be had.

    Raises:
        EnvironmentProblem: The port is taken.
    """
    listening = socket.socket()
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((HOST, port))
    except OSError as error:
        raise EnvironmentProblem(
            f"cannot listen on {HOST}:{port}: {error.strerror}. Leave --port out"
        ) from error
    server: BoundedServer | None = None
    app = application(view, start, lambda: server is not None and server.should_exit)
    server = BoundedServer(app, Limits(connections=CONNECTIONS), log_config=None, lifespan="off")
    with listening:
        listening.listen()
        opened(f"http://{HOST}:{listening.getsockname()[1]}/")
        server.run(sockets=[listening])

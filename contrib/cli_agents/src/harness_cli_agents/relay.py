"""A command's only endpoint: passes its calls on to the gateway, and notes the first one that fails.

Commands repeat failed calls, which the host does already. The attempt ends at the first failure instead.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from urllib.parse import urlsplit

import httpx
from aiohttp import web

CALLS = ("/chat/completions", "/responses", "/messages")
"""Ends of the paths of model calls. Other requests, such as those for lists of models, may fail."""
_OWN = frozenset(
    "connection content-encoding content-length host keep-alive transfer-encoding".split()
)
"""Headers that belong to one connection."""


class Relay:
    """The endpoint of one attempt.

    Attributes:
        base_url: What the command gets in place of the gateway's URL of the role; ends in `/v1`.
        failed: The status of the first failed model call, once there is one.
    """

    def __init__(self, target: str, http_client: httpx.AsyncClient) -> None:
        parts = urlsplit(target)
        self._origin = f"{parts.scheme}://{parts.netloc}"
        self._path = parts.path
        self._http_client = http_client
        self.base_url = ""
        self.failed: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    def listens(self, port: int) -> None:
        """Set the URL."""
        self.base_url = f"http://127.0.0.1:{port}{self._path}"

    async def pass_on(self, request: web.Request) -> web.StreamResponse:
        """Pass one request on, and its answer back in pieces as they arrive."""
        headers = {
            name: value for name, value in request.headers.items() if name.lower() not in _OWN
        }
        headers["accept-encoding"] = "identity"
        async with self._http_client.stream(
            request.method,
            self._origin + request.raw_path,
            headers=headers,
            content=await request.read(),
            timeout=None,
        ) as answer:
            back = {name: value for name, value in answer.headers.items() if name not in _OWN}
            response = web.StreamResponse(status=answer.status_code, headers=back)
            await response.prepare(request)
            async for piece in answer.aiter_raw():
                await response.write(piece)
            await response.write_eof()
        if answer.is_error and request.path.endswith(CALLS) and not self.failed.done():
            self.failed.set_result(answer.status_code)
        return response


@contextlib.asynccontextmanager
async def relayed(target: str, http_client: httpx.AsyncClient) -> AsyncIterator[Relay]:
    """Listen on a free port of loopback. At the end all connections are closed."""
    relay = Relay(target, http_client)
    # A command that hangs up also ends its call at the gateway.
    runner = web.ServerRunner(
        web.Server(relay.pass_on, access_log=None),  # type: ignore[arg-type]
        handler_cancellation=True,
        shutdown_timeout=0.1,
    )
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        relay.listens(runner.addresses[0][1])
        yield relay
    finally:
        await runner.cleanup()
        relay.failed.cancel()

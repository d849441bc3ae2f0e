"""A server over streamable HTTP, by the SDK's client, with answers of bounded length."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable

import anyio
import httpx
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.message import SessionMessage

from harness_mcp_tools.servers import Server
from harness_mcp_tools.streams import MAX_BYTES, Streams, too_long

CONNECT_S = 10.0


class _Broken(httpx.ReadError):
    """An incomplete answer that the session already knows of."""


class _Bounded(httpx.AsyncByteStream):
    """An answer's body up to the bound. The session learns of an error before it is raised."""

    def __init__(
        self,
        body: httpx.AsyncByteStream,
        tell: Callable[[SessionMessage | Exception], Awaitable[None]],
        request: int | str,
    ) -> None:
        self._body, self._tell, self._request = body, tell, request

    async def __aiter__(self) -> AsyncIterator[bytes]:
        room = MAX_BYTES
        try:
            async for chunk in self._body:
                room -= len(chunk)
                if room < 0:
                    await self._tell(too_long(self._request))
                    raise _Broken("too long")
                yield chunk
        except httpx.TransportError as error:
            if not isinstance(error, _Broken):
                await self._tell(error)
            raise

    async def aclose(self) -> None:
        await self._body.aclose()


class _Transport(httpx.AsyncHTTPTransport):
    def __init__(self, tell: Callable[[SessionMessage | Exception], Awaitable[None]]) -> None:
        super().__init__()
        self._tell = tell

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        response = await super().handle_async_request(request)
        if request.method == "POST" and isinstance(response.stream, httpx.AsyncByteStream):
            asked = json.loads(request.content).get("id", -1)
            response.stream = _Bounded(response.stream, self._tell, asked)
        return response


@contextlib.asynccontextmanager
async def http(server: Server) -> AsyncIterator[Streams]:
    """Open an MCP session at a server, and end it there on exit.

    Raises:
        EnvironmentFault: A variable that holds a header is not set here.
    """
    headers = {name: server.value_of(variable) for name, variable in server.headers.items()}
    streams = Streams()
    client = httpx.AsyncClient(
        headers=headers,
        timeout=httpx.Timeout(CONNECT_S, read=None),
        transport=_Transport(streams.incoming.send),
    )
    async with (
        client,
        streamable_http_client(server.url, http_client=client) as (read, write, _),
        anyio.create_task_group() as tasks,
    ):

        async def receive() -> None:
            async with streams.incoming:
                async for message in read:
                    if not isinstance(message, _Broken):
                        await streams.incoming.send(message)

        streams.write = write
        tasks.start_soon(receive)
        try:
            yield streams
        finally:
            tasks.cancel_scope.cancel()

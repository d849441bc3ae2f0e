"""The environment's tools of one attempt as an MCP server on a Unix socket."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp import types
from mcp.server.lowlevel import Server
from mcp.shared.message import SessionMessage

from harness.contracts.toolbox import Toolbox
from harness_cli_agents.command import SERVER

MAX_BYTES = 4 << 20
"""Most bytes of one message. A longer one ends the connection."""
NO_MORE = "Error: no tool calls are left. Give the answer now."
"""Result of a tool call after the last permitted one."""


@contextlib.asynccontextmanager
async def served(toolbox: Toolbox, socket: Path) -> AsyncIterator[ToolServer]:
    """Serve the tools of a toolbox on a socket. At the end all connections are closed.

    Calls run one after the other, in order of arrival, at most `max_turns` of them.
    """
    tools = ToolServer(toolbox)
    connections: set[asyncio.Task[None]] = set()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        connections.add(task)
        try:
            await _converse(tools.server(), reader, writer)
        except asyncio.CancelledError:
            pass  # the attempt has ended
        finally:
            connections.discard(task)
            writer.close()

    server = await asyncio.start_unix_server(connected, socket, limit=MAX_BYTES)
    try:
        yield tools
    finally:
        server.close()
        open_ = list(connections)
        for task in open_:
            task.cancel()
        await asyncio.gather(*open_, return_exceptions=True)


class ToolServer:
    """The tools of one attempt, for any number of connections.

    Attributes:
        listed: Whether a client has requested the list of tools.
    """

    def __init__(self, toolbox: Toolbox) -> None:
        self._toolbox = toolbox
        self._one_at_a_time = asyncio.Lock()
        self._calls = 0
        self.listed = False

    def server(self) -> Server[object, object]:
        """Return an MCP server for one connection."""
        server: Server[object, object] = Server(SERVER)
        # Not by the decorators: they check arguments against the schema, which the toolbox does in its own words.
        server.request_handlers[types.ListToolsRequest] = self._list
        server.request_handlers[types.CallToolRequest] = self._call
        return server

    async def _list(self, _: types.ListToolsRequest) -> types.ServerResult:
        self.listed = True
        tools = [
            types.Tool(
                name=tool.name, description=tool.description, inputSchema=dict(tool.parameters)
            )
            for tool in self._toolbox.tools
        ]
        return types.ServerResult(types.ListToolsResult(tools=tools))

    async def _call(self, request: types.CallToolRequest) -> types.ServerResult:
        async with self._one_at_a_time:
            self._calls += 1
            if self._calls > self._toolbox.max_turns:
                text = NO_MORE
            else:
                text = await self._toolbox.call(request.params.name, request.params.arguments or {})
        content: list[types.ContentBlock] = [types.TextContent(type="text", text=text)]
        return types.ServerResult(types.CallToolResult(content=content))


async def _converse(
    server: Server[object, object], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    """Answer the messages of one connection until it closes."""
    incoming, received = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    sent, outgoing = anyio.create_memory_object_stream[SessionMessage](0)
    async with anyio.create_task_group() as group:
        group.start_soon(_read, reader, incoming)
        group.start_soon(_write, writer, outgoing)
        await server.run(received, sent, server.create_initialization_options())
        group.cancel_scope.cancel()


async def _read(
    reader: asyncio.StreamReader, incoming: MemoryObjectSendStream[SessionMessage | Exception]
) -> None:
    async with incoming:
        while True:
            try:
                line = await reader.readuntil(b"\n")
            except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, OSError):
                return
            try:
                message = SessionMessage(types.JSONRPCMessage.model_validate_json(line))
            except ValueError as error:
                await incoming.send(error)
            else:
                await incoming.send(message)


async def _write(
    writer: asyncio.StreamWriter, outgoing: MemoryObjectReceiveStream[SessionMessage]
) -> None:
    async with outgoing:
        async for message in outgoing:
            text = message.message.model_dump_json(by_alias=True, exclude_none=True)
            writer.write(text.encode() + b"\n")
            with contextlib.suppress(OSError):
                await writer.drain()

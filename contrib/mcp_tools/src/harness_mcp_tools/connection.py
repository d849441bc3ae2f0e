"""One connection to a server, with typed faults that are distinct from a tool's own errors."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import time
from collections.abc import Coroutine, Mapping, Sequence
from typing import TypeVar

import anyio
import httpx
from mcp import ClientSession, McpError
from mcp.types import (
    CONNECTION_CLOSED,
    INVALID_PARAMS,
    CallToolRequest,
    CallToolRequestParams,
    CallToolResult,
    ClientRequest,
    PaginatedRequestParams,
    TextResourceContents,
)
from mcp.types import Tool as ServerTool
from pydantic import AnyUrl

from harness.contracts.environments import Observation, Tool
from harness.errors import EnvironmentFault
from harness.records import JSON
from harness.util.json_schema import SchemaFault, check_schema, find_mismatch
from harness_mcp_tools.contents import text_of
from harness_mcp_tools.http import http
from harness_mcp_tools.servers import Server
from harness_mcp_tools.stdio import stdio
from harness_mcp_tools.streams import MAX_BYTES, TOO_LONG, Streams

START_S = 20.0
"""Seconds in which a server starts, completes the handshake and lists all of its tools."""
PING_S = 1.5
"""Seconds in which a server with a late tool must answer a ping."""
END_S = 5.0
MAX_TOOLS = 512
MAX_PAGES = 64
"""Most pages of a server's list of tools."""
_NO_RESULT = (ValueError, RuntimeError, anyio.ClosedResourceError, anyio.BrokenResourceError)
_OVER = (CONNECTION_CLOSED, 32600)
"""The SDK's codes for a broken connection and for an unknown or ended session."""
_T = TypeVar("_T")

# Faults are typed and reported here; the SDK's tracebacks would repeat them with the server's
# output.
logging.getLogger("mcp").setLevel(logging.CRITICAL)


class Connection:
    """A session of the SDK in a task of its own, which outlives the end of an attempt.

    Args:
        name: The server's name in messages.

    Attributes:
        title: The server's own name, with its version.
        tools: The server's tools from its last list.
    """

    def __init__(self, name: str, server: Server) -> None:
        self._name, self._server = name, server
        self._session: ClientSession | None = None
        self._stop = asyncio.Event()
        self._streams: Streams | None = None
        self._why = "it ended"
        self.title = ""
        self.tools: tuple[Tool, ...] = ()
        self._output_schemas: dict[str, dict[str, JSON]] = {}

    @property
    def gone(self) -> bool:
        """Return whether it has ended for any reason."""
        return (
            self._owner.done()
            or self._stop.is_set()
            or (self._streams is not None and self._streams.ended.is_set())
        )

    async def open(self) -> None:
        """Start or reach the server, and list its tools.

        Raises:
            EnvironmentFault: It does not start, is no MCP server, takes too long, or has tools that
                are refused.
        """
        deadline = time.monotonic() + START_S
        ready = asyncio.Event()
        # The task outlives the first attempt, so it inherits nothing from that attempt's context.
        self._owner = asyncio.create_task(self._own(ready), context=contextvars.Context())
        try:
            await self._ask(ready.wait(), START_S)
            await self.list(deadline)
        except TimeoutError:
            self._why = f"it did not start within {START_S:g} s"
            await self.close()
            raise self._fault() from None
        except BaseException:
            await self.close()
            raise

    async def _own(self, ready: asyncio.Event) -> None:
        transport = http(self._server) if self._server.url else stdio(self._server)
        try:
            async with (
                transport as self._streams,
                ClientSession(
                    self._streams.read, self._streams.write, message_handler=self._handle
                ) as session,
            ):
                found = (await session.initialize()).serverInfo
                self.title, self._session = f"{found.name} {found.version}", session
                ready.set()
                stopped = asyncio.ensure_future(self._stop.wait())
                ended = asyncio.ensure_future(self._streams.ended.wait())
                over = [stopped, ended]
                await asyncio.wait(over, return_when=asyncio.FIRST_COMPLETED)
                for task in over:
                    task.cancel()
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # usually a group
            self._why = _reason(error)

    async def _handle(self, message: object) -> None:
        """Handle messages that answer no request: some state why no further answers follow."""
        if isinstance(message, httpx.TransportError):
            self._why = _reason(message)
            self._stop.set()

    async def list(self, deadline: float | None = None) -> None:
        """List the server's tools again.

        Args:
            deadline: Time of `time.monotonic` by which the list must be complete; by default in
                `START_S`.

        Raises:
            EnvironmentFault: It does not list its tools in time, lists too many, or one has a
                schema that cannot be applied safely.
        """
        deadline = time.monotonic() + START_S if deadline is None else deadline
        listed = await self._list_pages(deadline)
        wanted = self._server.tools
        offered = [tool for tool in listed if not wanted or tool.name in wanted]
        # All are checked before any is offered: an attempt sees either list, never a mixture.
        for tool in offered:
            self._check_schemas(tool)
        tools = []
        output_schemas = {}
        for tool in offered:
            tools.append(Tool(tool.name, tool.description or "", tool.inputSchema))
            if tool.outputSchema:
                output_schemas[tool.name] = tool.outputSchema
        self.tools = tuple(tools)
        self._output_schemas = output_schemas

    async def _list_pages(self, deadline: float) -> Sequence[ServerTool]:
        """Return the tools of all pages."""
        found: list[ServerTool] = []
        cursor: str | None = None
        for _ in range(MAX_PAGES):
            request = self._live.list_tools(params=PaginatedRequestParams(cursor=cursor))
            remaining_s = max(0.0, deadline - time.monotonic())
            late = f"it did not list its tools within {START_S:g} s"
            page = await self._answer(request, remaining_s, late)
            found += page.tools
            cursor = page.nextCursor
            if len(found) > MAX_TOOLS:
                raise EnvironmentFault(f"server {self._name!r} lists more than {MAX_TOOLS} tools")
            if not cursor or not page.tools:
                return found
        raise EnvironmentFault(
            f"server {self._name!r} lists its tools in more than {MAX_PAGES} pages"
        )

    def _check_schemas(self, tool: ServerTool) -> None:
        """Refuse a tool with a schema that cannot be applied safely."""
        for kind, schema in (
            ("inputSchema", tool.inputSchema),
            ("outputSchema", tool.outputSchema),
        ):
            if schema is None:
                continue
            try:
                check_schema(schema)
            except SchemaFault as fault:
                message = (
                    f"server {self._name!r}: the {kind} of tool {tool.name!r} {fault}. "
                    "Correct it, or choose other tools with the server's option `tools`"
                )
                raise EnvironmentFault(self._server.hide(message)) from None

    async def call(
        self, tool: str, arguments: Mapping[str, JSON], timeout_s: float, max_chars: int
    ) -> Observation:
        """Carry out a call.

        Raises:
            TimeoutError: The tool takes too long, but the server answers pings.
            EnvironmentFault: The server is gone, hangs, or returns an invalid result.
        """
        try:
            result = await self._ask(self._request_call(tool, arguments), timeout_s)
        except TimeoutError:
            await self.check()
            raise
        except McpError as error:
            if error.error.code == TOO_LONG:
                return Observation(
                    f"{tool} returned more than {MAX_BYTES >> 20} MiB. Ask for less.", ok=False
                )
            if error.error.code == INVALID_PARAMS:
                return Observation(self._server.hide(error.error.message)[:max_chars], ok=False)
            raise await self._refused(error) from None
        except _NO_RESULT as error:
            raise self._odd(error) from None
        self._check_result(tool, result)
        text = self._server.hide(text_of(result))
        if len(text) > max_chars:
            text = f"{text[:max_chars]}\n... ({len(text):,} characters in all)"
        return Observation(text, not result.isError)

    def _request_call(
        self, tool: str, arguments: Mapping[str, JSON]
    ) -> Coroutine[None, None, CallToolResult]:
        """Send the request itself: the SDK's `call_tool` applies output schemas without bounds."""
        params = CallToolRequestParams(name=tool, arguments=dict(arguments))
        request = ClientRequest(CallToolRequest(params=params))
        return self._live.send_request(request, CallToolResult)

    def _check_result(self, tool: str, result: CallToolResult) -> None:
        """Validate a result against the output schema of its tool.

        Raises:
            EnvironmentFault: It does not fit.
        """
        schema = self._output_schemas.get(tool)
        if schema is None or result.isError:
            return
        if result.structuredContent is None:
            raise self._odd(
                ValueError(f"{tool} has an output schema and returned no structured content")
            )
        try:
            found = find_mismatch(result.structuredContent, schema)
        except SchemaFault as fault:
            raise self._odd(ValueError(f"the outputSchema of {tool} {fault}")) from None
        if found is not None:
            place = f" at {found.place}" if found.place else ""
            reason = f"the structured content of {tool} does not fit{place}: {found.message}"
            raise self._odd(ValueError(reason))

    async def check(self) -> None:
        """Ping the server, and end the connection if it does not answer.

        Raises:
            EnvironmentFault: It does not answer.
        """
        try:
            await self._ask(self._live.send_ping(), PING_S)
        except TimeoutError:
            self._why = f"it did not answer a ping within {PING_S:g} s"
            self._stop.set()
            raise self._fault() from None
        except McpError as error:
            raise await self._refused(error) from None

    async def state(self, uri: str, timeout_s: float) -> str:
        """Return the text of a resource.

        Raises:
            EnvironmentFault: The resource cannot be read.
        """
        read = await self._answer(self._live.read_resource(AnyUrl(uri)), timeout_s)
        texts = [part.text for part in read.contents if isinstance(part, TextResourceContents)]
        return "\n".join(texts)

    def stop(self) -> None:
        """End the connection. Every pending request gets a fault."""
        self._stop.set()

    async def close(self) -> None:
        """End the connection, and the server's process if there is one."""
        self.stop()
        done, _ = await asyncio.wait({self._owner}, timeout=END_S)
        if not done:
            self._owner.cancel()
            await asyncio.wait({self._owner}, timeout=END_S)

    @property
    def _live(self) -> ClientSession:
        if self._session is None or self.gone:
            raise self._fault()
        return self._session

    async def _answer(
        self, work: Coroutine[None, None, _T], timeout_s: float, late: str = ""
    ) -> _T:
        """Return the server's answer to a request that it may not refuse."""
        try:
            return await self._ask(work, timeout_s)
        except TimeoutError:
            self._why = late or f"it did not answer within {timeout_s:g} s"
            self._stop.set()
            raise self._fault() from None
        except McpError as error:
            raise await self._refused(error) from None
        except _NO_RESULT as error:
            raise self._odd(error) from None

    async def _ask(self, work: Coroutine[None, None, _T], timeout_s: float) -> _T:
        """Wait for an answer as long as the connection lives."""
        asked = asyncio.ensure_future(work)
        stopped = asyncio.ensure_future(self._stop.wait())
        try:
            await asyncio.wait(
                {asked, stopped, self._owner},
                timeout=timeout_s,
                return_when=asyncio.FIRST_COMPLETED,
            )
            if asked.done():
                return asked.result()
            if self.gone:
                await asyncio.wait({self._owner}, timeout=END_S)
                raise self._fault()
            raise TimeoutError
        finally:
            for task in (asked, stopped):
                task.cancel()

    async def _refused(self, error: McpError) -> EnvironmentFault:
        """Return the fault of a server that answered with an error, or ended."""
        if error.error.code not in _OVER:  # affects this call only
            return EnvironmentFault(
                self._server.hide(f"server {self._name!r}: {error.error.message}")
            )
        self._why = error.error.message
        self._stop.set()
        await asyncio.wait({self._owner}, timeout=END_S)
        return self._fault()

    def _odd(self, error: Exception) -> EnvironmentFault:
        if self.gone:
            return self._fault()
        return EnvironmentFault(
            self._server.hide(f"server {self._name!r} returned an invalid result: {_reason(error)}")
        )

    def _fault(self) -> EnvironmentFault:
        output = ""
        if self._streams is not None and self._streams.last_line:
            output = f" (last stderr line: {self._streams.last_line})"
        return EnvironmentFault(self._server.hide(f"server {self._name!r}: {self._why}{output}"))


def _reason(error: BaseException) -> str:
    """Return the first cause in one line."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    kind = "" if isinstance(error, McpError) else f"{type(error).__name__}: "
    return f"{kind}{' '.join(str(error).split())[:300]}"

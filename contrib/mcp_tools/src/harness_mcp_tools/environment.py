"""The environment `mcp`: tools of MCP servers."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any
from weakref import WeakKeyDictionary

from harness.contracts.environments import Environment, Observation, Tool, check_offered
from harness.errors import EnvironmentFault, RolloutError
from harness.records import JSON, Task
from harness_mcp_tools.connection import Connection
from harness_mcp_tools.servers import Server

MCP = "mcp"
"""Key in a task's data with its servers, and their tools when the tasks were loaded."""


class Pool:
    """Shared connections, one per server, for the lifetime of its process and of this one."""

    def __init__(self) -> None:
        self._kept: dict[str, Connection] = {}
        self._starting: dict[str, asyncio.Lock] = {}

    async def get(self, name: str, server: Server) -> Connection:
        """Return the connection to a server, which is started if missing or ended.

        Raises:
            EnvironmentFault: It does not start.
        """
        key = f"{name} {server.model_dump_json()}"
        async with self._starting.setdefault(key, asyncio.Lock()):
            found = self._kept.get(key)
            if found is None or found.gone:
                found = Connection(name, server)
                await found.open()
                self._kept[key] = found
        return found


class McpEnvironment(Environment):
    """Tools of the servers that the task set names.

    Their definitions are frozen when tasks are loaded.
    """

    def __init__(self) -> None:
        self._pools: WeakKeyDictionary[asyncio.AbstractEventLoop, Pool] = WeakKeyDictionary()

    def payload(self, task: Task, limits: Mapping[str, object]) -> Mapping[str, Any]:
        return {
            MCP: task.data[MCP],
            "limits": {name: limits[name] for name in ("timeout_s", "max_chars")},
        }

    def tools_for(self, payload: Mapping[str, Any]) -> tuple[Tool, ...]:
        """Return the tools of all servers of a task, in the order of the servers."""
        tools = []
        for server in payload[MCP]:
            tools += [Tool(**tool) for tool in server["tools"]]
        return tuple(tools)

    def check(self, payload: Mapping[str, Any]) -> None:
        for entry in payload[MCP]:
            server = Server.model_validate(entry["server"])
            if missing := server.missing():
                raise RolloutError(
                    f"server {entry['name']!r}: {missing[0]} names a variable "
                    "that is not set on this machine"
                )

    async def open(self, payload: Mapping[str, Any], attempt: str) -> McpSession:
        """Connect to every server of a task, and check that it still offers the same tools."""
        pool = self._pools.setdefault(asyncio.get_running_loop(), Pool())
        session = McpSession(pool, payload)
        try:
            await session.open()
        except BaseException:
            await session.close(read=False)
            raise
        return session


class McpSession:
    """One attempt's connections: its own for a server with state, otherwise shared ones."""

    def __init__(self, pool: Pool, payload: Mapping[str, Any]) -> None:
        self._pool = pool
        self._limits = payload["limits"]
        self._servers: dict[str, Server] = {}
        self._tools: dict[str, list[Tool]] = {}
        self._server_of: dict[str, str] = {}
        for entry in payload[MCP]:
            name = entry["name"]
            self._servers[name] = Server.model_validate(entry["server"])
            self._tools[name] = [Tool(**tool) for tool in entry["tools"]]
            for tool in self._tools[name]:
                self._server_of[tool.name] = name
        self._own: dict[str, Connection] = {}
        self._checked: dict[str, Connection] = {}
        self._cut_off: set[str] = set()

    async def open(self) -> None:
        """Connect to all servers."""
        for name, server in self._servers.items():
            if server.own:
                self._own[name] = Connection(name, server)
                await self._own[name].open()
                self._fit(name, self._own[name])
            else:
                connection = await self._pool.get(name, server)
                await connection.list()
                self._fit(name, connection)

    def _fit(self, name: str, connection: Connection) -> Connection:
        try:
            check_offered(self._tools[name], connection.tools)
        except EnvironmentFault as error:
            raise EnvironmentFault(f"server {name!r}: {error}") from None
        self._checked[name] = connection
        return connection

    async def call(self, tool: str, arguments: Mapping[str, JSON]) -> Observation:
        name = self._server_of[tool]
        connection = self._checked[name]
        if connection.gone and not self._servers[name].own:
            # Another attempt's call ended it. It has no state, so that a new one can replace it.
            connection = self._fit(name, await self._pool.get(name, self._servers[name]))
        try:
            return await connection.call(
                tool, arguments, self._limits["timeout_s"], self._limits["max_chars"]
            )
        except asyncio.CancelledError:
            self._cut_off.add(name)
            raise

    async def close(self, read: bool = True) -> Mapping[str, JSON] | None:
        """Close this attempt's own connections.

        Args:
            read: Whether to read the final state first.

        Raises:
            EnvironmentFault: The state cannot be read, or a server hung while the attempt waited
                for it.
        """
        try:
            for name in self._cut_off:
                await self._checked[name].check()
            return await self._state() if read else None
        finally:
            connections = list(self._own.values())
            for connection in connections:
                connection.stop()  # at once, even if the caller is cancelled then
            await asyncio.gather(*(connection.close() for connection in connections))

    async def _state(self) -> Mapping[str, JSON] | None:
        """Return the text of each server's resource, by server, or None without resources."""
        limit_s = self._limits["timeout_s"]
        states = {}
        for name, server in self._servers.items():
            if server.state:
                states[name] = await self._own[name].state(server.state, limit_s)
        return states or None


async def listed(name: str, server: Server) -> tuple[str, Sequence[Tool]]:
    """Start a server and return its own name and its tools.

    Raises:
        EnvironmentFault: It does not start, or does not answer.
    """
    connection = Connection(name, server)
    await connection.open()
    try:
        return connection.title, connection.tools
    finally:
        await connection.close()

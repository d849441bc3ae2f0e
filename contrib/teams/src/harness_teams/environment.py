"""The environment `split_sql`: several read-only SQLite databases, each with its own tool."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from harness import Environment, Observation, Task, Tool
from harness_sql.sqlite.environment import DATABASE, SQLEnvironment
from harness_sql.sqlite.schema import schema_text

PlainData = Mapping[str, Any]
"""PlainData JSON data."""
DATABASES = "databases"
"""Key in a task's data with its SQLite files by database name."""
SCHEMA_CHARS = 1_000
_PREFIX = "query_"


class SplitEnvironment(Environment):
    """`query_NAME` reads only database NAME, in the sandbox of the environment `sql`."""

    tools = (
        Tool(
            f"{_PREFIX}a",
            "Run one SQLite query on database a and read its result. It has:\n...",
            SQLEnvironment.tools[0].parameters,
        ),
    )

    def __init__(self) -> None:
        self._sql = SQLEnvironment()

    def payload(self, task: Task, limits: PlainData) -> PlainData:
        # Read on the host, once for a task: agents see schemas, never the files.
        databases = {}
        for name, path in task.data[DATABASES].items():
            schema = schema_text(path, limit_chars=SCHEMA_CHARS, style="compact")
            databases[name] = {DATABASE: path, "schema": schema}
        return {DATABASES: databases, "limits": dict(limits)}

    def tools_for(self, payload: PlainData) -> tuple[Tool, ...]:
        """Return a tool for each database, with the tables in its description."""
        tools = []
        for name, database in payload[DATABASES].items():
            description = (
                f"Run one SQLite query on database {name} and read its result. "
                f"It has:\n{database['schema']}"
            )
            tools.append(Tool(f"{_PREFIX}{name}", description, self.tools[0].parameters))
        return tuple(tools)

    def check(self, payload: PlainData) -> None:
        for database in payload[DATABASES].values():
            self._sql.check(database)

    async def call(self, payload: PlainData, tool: str, arguments: PlainData) -> Observation:
        database = payload[DATABASES][tool.removeprefix(_PREFIX)]
        sql_payload = {DATABASE: database[DATABASE], "limits": payload["limits"]}
        return await self._sql.call(sql_payload, self._sql.tools[0].name, arguments)

"""An MCP server of one tool: queries on the database of the task set `medical`, or on the SQLite file that is named."""

import asyncio
import sys

from mcp.server import Server
from mcp.server.stdio import stdio_server
from mcp.types import TextContent, Tool

from harness_sql.sqlite.sandbox import Limits, execute, render
from harness_sql.tasks.medical import MedicalTasks

server: Server[object] = Server("medical")
database = sys.argv[1] if len(sys.argv) > 1 else MedicalTasks().load("val")[0].data["database"]
limits = Limits(max_rows=10, max_text_chars=400)
# Word for word what the policy `medical-tools` has learned from: of another tool's text it makes little.
schema = {
    "type": "object",
    "properties": {"sql": {"type": "string", "description": "One SQLite query."}},
    "required": ["sql"],
    "additionalProperties": False,
}
about = "Run one SQLite query on the database and read its result. Only reading is allowed."


@server.list_tools()
async def tools() -> list[Tool]:
    return [Tool(name="query_database_by_sql", description=about, inputSchema=schema)]


@server.call_tool()
async def call(name: str, arguments: dict[str, str]) -> list[TextContent]:
    result = await asyncio.to_thread(execute, database, arguments["sql"], limits)
    if not result.ok:
        raise ValueError(render(result, limits))
    return [TextContent(type="text", text=render(result, limits))]


async def main() -> None:
    async with stdio_server() as (read, write):
        await server.run(read, write, server.create_initialization_options())


asyncio.run(main())

"""An MCP server of one tool: queries on the database of the task set `medical`, or on the SQLite file that is named."""

import asyncio
import sys

from mcp.server.fastmcp import FastMCP
from mcp.server.fastmcp.exceptions import ToolError

from harness_sql.sqlite.sandbox import execute, render
from harness_sql.tasks.medical import MedicalTasks

server = FastMCP("medical", log_level="ERROR")
database = sys.argv[1] if len(sys.argv) > 1 else MedicalTasks().load("val")[0].data["database"]


@server.tool()
async def query_database_by_sql(sql: str) -> str:
    """Run one SQLite query on the database and read its result. Only reading is allowed."""
    result = await asyncio.to_thread(execute, database, sql)
    if not result.ok:
        raise ToolError(render(result))
    return render(result)


server.run()

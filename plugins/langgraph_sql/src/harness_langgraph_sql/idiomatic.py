"""The SQL agent as in LangGraph's documentation: a model with an execute tool and a ToolNode."""

from __future__ import annotations

from dataclasses import replace

from langchain_core.tools import tool

from harness.contracts.toolbox import Toolbox
from harness.records import Problem
from harness_langgraph_sql.tools_idiomatic import follow
from harness_sql.self_correcting.prompts import TRY


class LangGraphSQLIdiomatic:
    """The model decides when to execute and stop; the recursion limit bounds its replies."""

    roles = ("write_query",)

    async def solve(self, problem: Problem, toolbox: Toolbox) -> str:
        last = ""

        @tool
        async def execute(sql: str) -> str:
            """Run a query on the database and return its result."""
            nonlocal last
            last = sql
            return await toolbox.execute(sql)

        prompt = toolbox.prompts.write(problem)
        asked = replace(prompt, system=prompt.system + TRY).messages
        reply = await follow("write_query", toolbox, [execute], asked, 2 * toolbox.max_turns)
        return str(toolbox.prompts.parse_sql(reply)) if reply else last

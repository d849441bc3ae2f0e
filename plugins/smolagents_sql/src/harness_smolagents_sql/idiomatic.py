"""The SQL agent as smolagents' documentation has it: a ToolCallingAgent with an execute tool."""

from __future__ import annotations

from typing import Any

from harness.contracts.toolbox import Toolbox
from harness.records import Problem
from harness_smolagents_sql.bridge import Bridge
from harness_smolagents_sql.tools_idiomatic import BridgedTool, follow
from harness_sql.self_correcting.prompts import TRY

PARAMETERS = {
    "type": "object",
    "properties": {"sql": {"type": "string", "description": "One SQLite query."}},
    "required": ["sql"],
}


class SmolagentsSQLIdiomatic:
    """The model decides when to execute and when to stop; `max_turns` bounds its steps."""

    roles = ("write_query",)

    async def solve(self, problem: Problem, toolbox: Toolbox) -> str:
        bridge = Bridge()

        def work(arguments: dict[str, Any]) -> str:
            return bridge.call(toolbox.execute(arguments["sql"]))

        description = "Run a query on the database and return its result."
        execute = BridgedTool("execute", description, PARAMETERS, work)
        prompt = toolbox.prompts.write(problem)
        answer = await follow(
            "write_query", prompt.system + TRY, prompt.user, toolbox, [execute], bridge
        )
        return str(toolbox.prompts.parse_sql(answer))

"""One agent of Microsoft Agent Framework that calls an execute tool as often as it chooses."""

from __future__ import annotations

from agent_framework import tool

from harness.contracts.toolbox import Toolbox
from harness.records import Problem
from harness_agent_framework_sql.tools_idiomatic import member
from harness_sql.self_correcting.prompts import TRY


class AgentFrameworkSQLIdiomatic:
    """The model decides when to execute. The reply after the last round is the answer.

    Its request has no tools.
    """

    roles = ("write_query",)

    async def solve(self, problem: Problem, toolbox: Toolbox) -> str:
        @tool
        async def execute(sql: str) -> str:
            """Run a query on the database and return its result."""
            return await toolbox.execute(sql)

        prompt = toolbox.prompts.write(problem)
        agent = member(
            "write_query", prompt.system + TRY, toolbox, [execute], max(1, toolbox.max_turns - 1)
        )
        return str(toolbox.prompts.parse_sql((await agent.run(prompt.user)).text))

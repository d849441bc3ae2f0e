"""One agent of Pydantic AI that calls an execute tool itself, as often as it likes."""

from __future__ import annotations

from pydantic_ai import Tool, UsageLimits
from pydantic_ai.exceptions import UsageLimitExceeded
from pydantic_ai.models.openai import OpenAIChatModel

from harness.contracts.toolbox import Toolbox
from harness.records import Problem
from harness_pydantic_ai_sql.agent import member, run_agent
from harness_sql.self_correcting.prompts import TRY


class PydanticAISQLIdiomatic:
    """The model decides when to execute and when to stop; `max_turns` bounds its calls."""

    roles = ("write_query",)

    async def solve(self, problem: Problem, toolbox: Toolbox) -> str:
        prompt = toolbox.prompts.write(problem)
        tried: list[str] = []

        async def execute(sql: str) -> str:
            """Run a query on the database and return its result.

            Args:
                sql: One SQLite query.
            """
            tried.append(sql)
            return await toolbox.execute(sql)

        agent = member(
            "write_query", prompt.system + TRY, toolbox, [Tool(execute)], OpenAIChatModel
        )
        limits = UsageLimits(request_limit=toolbox.max_turns)
        try:
            text = await run_agent(agent, prompt.user, usage_limits=limits)
        except UsageLimitExceeded:
            return tried[-1] if tried else ""
        return str(toolbox.prompts.parse_sql(text))

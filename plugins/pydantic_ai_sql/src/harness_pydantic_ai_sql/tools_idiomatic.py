"""The idiomatic tool-calling agent of Pydantic AI: tools made from their schemas, its own run."""

from __future__ import annotations

from pydantic_ai import Tool as FunctionTool
from pydantic_ai import UsageLimits
from pydantic_ai.exceptions import UsageLimitExceeded
from pydantic_ai.models.openai import OpenAIChatModel

from harness.contracts.environments import Tool
from harness.contracts.toolbox import Toolbox
from harness.records import JSON, Problem
from harness_pydantic_ai_sql.agent import member, run_agent
from harness_sql.tool_loop.prompts import ROLES


def as_function(tool: Tool, toolbox: Toolbox) -> FunctionTool:
    """Convert a tool of the environment to the framework's type."""

    async def invoke(**arguments: JSON) -> str:
        return await toolbox.call(tool.name, arguments)

    return FunctionTool.from_schema(invoke, tool.name, tool.description, dict(tool.parameters))


class PydanticAIToolsIdiomatic:
    """The framework answers unknown tools itself; `max_turns` bounds its replies, answer included."""

    roles = ROLES

    async def solve(self, problem: Problem, toolbox: Toolbox) -> str:
        tools = [as_function(tool, toolbox) for tool in toolbox.tools]
        agent = member(ROLES[0], toolbox.prompts.system, toolbox, tools, OpenAIChatModel)
        limits = UsageLimits(request_limit=toolbox.max_turns)
        try:
            text = await run_agent(agent, toolbox.prompts.user(problem), usage_limits=limits)
        except UsageLimitExceeded:
            return ""
        return text.strip()

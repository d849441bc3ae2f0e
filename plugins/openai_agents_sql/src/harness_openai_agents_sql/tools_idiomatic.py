"""The idiomatic tool-calling agent of the OpenAI Agents SDK: strict tools and its runner."""

from __future__ import annotations

from agents import FunctionTool, MaxTurnsExceeded, Runner
from agents.tool_context import ToolContext

from harness.contracts.environments import Tool
from harness.contracts.toolbox import Toolbox
from harness.records import Problem
from harness_openai_agents_sql.agent import RUN, member
from harness_sql.tool_loop.prompts import ROLES


def as_function(tool: Tool, toolbox: Toolbox) -> FunctionTool:
    """Convert a tool of the environment to the SDK's type."""

    async def invoke(context: ToolContext[None], arguments: str) -> str:
        return await toolbox.call(tool.name, arguments)

    return FunctionTool(tool.name, tool.description, dict(tool.parameters), invoke)


def functions(toolbox: Toolbox) -> list[FunctionTool]:
    """Return the toolbox's tools."""
    return [as_function(tool, toolbox) for tool in toolbox.tools]


class OpenAIAgentsToolsIdiomatic:
    """The SDK makes schemas strict and runs calls concurrently; `max_turns` limits all replies."""

    roles = ROLES

    async def solve(self, problem: Problem, toolbox: Toolbox) -> str:
        agent = member(ROLES[0], toolbox.prompts.system, toolbox, functions(toolbox))
        try:
            run = await Runner.run(
                agent, toolbox.prompts.user(problem), run_config=RUN, max_turns=toolbox.max_turns
            )
        except MaxTurnsExceeded:
            return ""
        return str(run.final_output).strip()

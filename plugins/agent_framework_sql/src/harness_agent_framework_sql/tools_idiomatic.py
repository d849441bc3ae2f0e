"""The tool-calling agent as Microsoft Agent Framework means it: an agent with function tools, and its own loop."""

from __future__ import annotations

from typing import Any, cast

from agent_framework import Agent, ChatOptions, FunctionTool

from harness.environments import Tool
from harness.records import Problem
from harness.toolbox import Toolbox
from harness_agent_framework_sql.client import chat_client
from harness_sql.tool_loop.prompts import ROLES


def as_function(tool: Tool, toolbox: Toolbox) -> FunctionTool:
    """A tool of the environment as one of the framework's."""

    async def run(**arguments: Any) -> str:
        return await toolbox.call(tool.name, arguments)

    return FunctionTool(name=tool.name, description=tool.description, input_model=tool.parameters, func=run)


class AgentFrameworkToolsIdiomatic:
    """The framework checks arguments, calls tools side by side, and asks a last time without tools."""

    roles = ROLES

    async def solve(self, problem: Problem, toolbox: Toolbox) -> str:
        agent = Agent(
            chat_client(ROLES[0], toolbox, {"max_iterations": toolbox.max_turns}),
            toolbox.prompts.system,
            name=ROLES[0],
            tools=[as_function(tool, toolbox) for tool in toolbox.tools],
            default_options=cast("ChatOptions[None]", {**toolbox.llm(ROLES[0]).sampling}),
        )
        return (await agent.run(toolbox.prompts.user(problem))).text.strip()

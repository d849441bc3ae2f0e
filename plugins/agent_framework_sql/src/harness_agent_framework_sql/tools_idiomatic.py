"""The tool-calling agent as Microsoft Agent Framework means it: an agent with function tools, and its own loop."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from agent_framework import Agent, ChatMiddleware, ChatOptions, FunctionTool

from harness.environments import Tool
from harness.records import Problem
from harness.toolbox import Toolbox
from harness_agent_framework_sql.client import chat_client
from harness_sql.tool_loop.prompts import ROLES


def as_function(tool: Tool, toolbox: Toolbox) -> FunctionTool:
    """A tool of the environment as one of the framework's."""

    async def run(**arguments: Any) -> str:
        return await toolbox.call(tool.name, arguments)

    return FunctionTool(
        name=tool.name, description=tool.description, input_model=tool.parameters, func=run
    )


def member(
    role: str,
    system: str,
    toolbox: Toolbox,
    tools: Sequence[FunctionTool],
    rounds: int,
    *more: ChatMiddleware,
) -> Agent:
    """An agent with tools, whose replies may call them in so many rounds."""
    return Agent(
        chat_client(role, toolbox, {"max_iterations": rounds}),
        system,
        name=role,
        tools=list(tools),
        default_options=cast("ChatOptions[None]", {**toolbox.llm(role).sampling}),
        middleware=list(more),
    )


def functions(toolbox: Toolbox) -> list[FunctionTool]:
    """The toolbox's tools."""
    return [as_function(tool, toolbox) for tool in toolbox.tools]


class AgentFrameworkToolsIdiomatic:
    """The framework checks arguments, calls tools side by side, and asks a last time without tools."""

    roles = ROLES

    async def solve(self, problem: Problem, toolbox: Toolbox) -> str:
        agent = member(
            ROLES[0], toolbox.prompts.system, toolbox, functions(toolbox), toolbox.max_turns
        )
        return (await agent.run(toolbox.prompts.user(problem))).text.strip()

"""The idiomatic tool-calling agent of Microsoft Agent Framework: function tools, its own loop."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from agent_framework import Agent, ChatMiddleware, ChatOptions, FunctionTool

from harness.contracts.environments import Tool
from harness.contracts.toolbox import Toolbox
from harness.records import Problem
from harness_agent_framework_sql.client import chat_client
from harness_sql.tool_loop.prompts import ROLES


def as_function(tool: Tool, toolbox: Toolbox) -> FunctionTool:
    """Convert a tool of the environment to the framework's type."""

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
    """Return an agent with tools and a limit on its rounds of tool calls."""
    return Agent(
        chat_client(role, toolbox, {"max_iterations": rounds}),
        system,
        name=role,
        tools=list(tools),
        default_options=cast("ChatOptions[None]", {**toolbox.llm(role).sampling}),
        middleware=list(more),
    )


def functions(toolbox: Toolbox) -> list[FunctionTool]:
    """Return the toolbox's tools."""
    return [as_function(tool, toolbox) for tool in toolbox.tools]


class AgentFrameworkToolsIdiomatic:
    """Let the framework check arguments and run calls concurrently.

    Its last request has no tools.
    """

    roles = ROLES

    async def solve(self, problem: Problem, toolbox: Toolbox) -> str:
        agent = member(
            ROLES[0], toolbox.prompts.system, toolbox, functions(toolbox), toolbox.max_turns
        )
        return (await agent.run(toolbox.prompts.user(problem))).text.strip()

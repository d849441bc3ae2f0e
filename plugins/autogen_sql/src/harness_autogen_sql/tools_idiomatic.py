"""The idiomatic tool-calling agent of AutoGen: an AssistantAgent with tools and its own loop."""

from __future__ import annotations

import asyncio

from autogen_core import CancellationToken
from autogen_core.tools import BaseTool
from autogen_core.utils import schema_to_pydantic_model
from pydantic import BaseModel

from harness.contracts.environments import Tool
from harness.contracts.toolbox import Toolbox
from harness.records import Problem
from harness_autogen_sql.running import ToolAgent, chat_client, run_agent
from harness_sql.tool_loop.prompts import ROLES


class ToolboxTool(BaseTool[BaseModel, str]):  # type: ignore[type-var]  # tools of theirs give texts, too
    """A tool of the environment. AutoGen checks its arguments and rewrites its schema."""

    def __init__(self, tool: Tool, toolbox: Toolbox) -> None:
        arguments = schema_to_pydantic_model(dict(tool.parameters), f"{tool.name}_arguments")
        super().__init__(arguments, str, tool.name, tool.description)
        self._toolbox = toolbox

    async def run(self, args: BaseModel, cancellation_token: CancellationToken) -> str:
        called = asyncio.ensure_future(
            self._toolbox.call(self.name, args.model_dump(exclude_unset=True, mode="json"))
        )
        return str(await cancellation_token.link_future(called))


class AutoGenToolsIdiomatic:
    """Run the calls of a reply concurrently. After the last round, its results are the answer."""

    roles = ROLES

    async def solve(self, problem: Problem, toolbox: Toolbox) -> str:
        agent = ToolAgent(
            ROLES[0],
            chat_client(ROLES[0], toolbox),
            tools=[ToolboxTool(tool, toolbox) for tool in toolbox.tools],
            system_message=toolbox.prompts.system,
            max_tool_iterations=toolbox.max_turns,
        )
        return await run_agent(toolbox.prompts.user(problem), agent)

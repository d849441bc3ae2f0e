"""The tool-calling agent as an AutoGen AssistantAgent with the toolbox as its workbench."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, cast

from autogen_agentchat.agents import AssistantAgent
from autogen_core import CancellationToken, FunctionCall
from autogen_core.models import CreateResult, FunctionExecutionResult
from autogen_core.tools import StaticWorkbench, ToolSchema, Workbench
from autogen_ext.models.openai import OpenAIChatCompletionClient
from openai import omit

from harness.contracts.toolbox import Toolbox
from harness.records import Problem
from harness_autogen_sql.running import chat_client, run_agent
from harness_sql.tool_loop.prompts import ROLES


class ToolboxBench(StaticWorkbench):
    """The toolbox's tools. AutoGen starts all calls of a reply together, as separate tasks."""

    def __init__(self, toolbox: Toolbox) -> None:
        super().__init__([])
        self._toolbox = toolbox
        self._pending: list[tuple[str, str]] = []
        """Calls of one reply that are not executed yet."""
        self._texts: asyncio.Task[list[str]] | None = None

    async def list_tools(self) -> list[ToolSchema]:
        return [cast(ToolSchema, tool.definition["function"]) for tool in self._toolbox.tools]

    async def carry_out(self, call: FunctionCall, token: CancellationToken) -> str:
        if not self._pending or self._texts is None:
            self._texts = asyncio.create_task(
                self._carry_out()
            )  # its turn comes when all of them have begun
        number, texts = len(self._pending), self._texts
        self._pending.append((call.name, call.arguments))
        token.link_future(texts)
        return (await texts)[number]

    async def _carry_out(self) -> list[str]:
        calls, self._pending = self._pending, []
        return await self._toolbox.call_all(calls)


class ToolAgent(AssistantAgent):
    """Pass raw calls to the workbench. AutoGen would reject bad JSON and unknown tools itself."""

    @staticmethod
    async def _execute_tool_call(
        tool_call: FunctionCall,
        workbench: Sequence[Workbench],
        handoff_tools: Any,
        agent_name: str,
        cancellation_token: CancellationToken,
        stream: Any,
    ) -> tuple[FunctionCall, FunctionExecutionResult]:
        (bench,) = workbench
        assert isinstance(bench, ToolboxBench)
        try:
            text = await bench.carry_out(tool_call, cancellation_token)
        except BaseException:
            stream.put_nowait(None)  # what AutoGen waits for; the exception is then its to raise
            raise
        return tool_call, FunctionExecutionResult(
            content=text, name=tool_call.name, call_id=tool_call.id
        )


class TurnsClient(OpenAIChatCompletionClient):
    """Treat the reply after the last turn as the answer, even if it has tool calls."""

    turns_left = 0
    cut_off = False
    """Whether the last reply had tool calls that were not executed."""

    async def create(self, *args: Any, **kwargs: Any) -> CreateResult:
        reply = await super().create(*args, **kwargs)
        self.turns_left -= 1
        self.cut_off = self.turns_left < 0 and not isinstance(reply.content, str)
        if self.cut_off:
            return reply.model_copy(update={"content": reply.thought or "", "thought": None})
        return reply


class Caller:
    """An agent that calls tools and keeps its history."""

    def __init__(self, role: str, system: str, toolbox: Toolbox) -> None:
        # AutoGen adds `tool_choice`, and `strict` to tool definitions, which chat templates print.
        exact: dict[str, object] = {"tool_choice": omit}
        if toolbox.tools:
            exact["tools"] = [tool.definition for tool in toolbox.tools]
        client = chat_client(role, toolbox, TurnsClient, extra_body=exact)
        assert isinstance(client, TurnsClient)
        self.client, self._most = client, toolbox.max_turns
        self._agent = ToolAgent(
            role,
            client,
            workbench=ToolboxBench(toolbox),
            system_message=system,
            max_tool_iterations=toolbox.max_turns + 1,
        )

    async def follow(self, task: str) -> str:
        """Run the agent until a reply has no tool call or exceeds the limit of turns."""
        self.client.turns_left = self._most
        return await run_agent(task, self._agent)


class AutoGenTools:
    """Call the model and its tools until a reply has no tool call."""

    roles = ROLES

    async def solve(self, problem: Problem, toolbox: Toolbox) -> str:
        return await Caller(self.roles[0], toolbox.prompts.system, toolbox).follow(
            toolbox.prompts.user(problem)
        )

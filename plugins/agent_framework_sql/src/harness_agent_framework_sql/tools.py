"""The tool-calling agent in Microsoft Agent Framework, with function tools and middleware."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from types import MappingProxyType
from typing import Any

from agent_framework import (
    Agent,
    ChatContext,
    ChatMiddleware,
    ChatResponse,
    Content,
    FunctionInvocationContext,
    FunctionMiddleware,
    FunctionTool,
)

from harness.contracts.toolbox import Toolbox
from harness.records import Problem
from harness_agent_framework_sql.client import chat_client, options
from harness_sql.tool_loop.prompts import ROLES


class Call(Content):
    """A tool call with raw arguments, which the framework would parse or reject."""

    def parse_arguments(self) -> dict[str, Any]:
        return {}


class Turns(ChatMiddleware):
    """Record each reply's calls. The reply after the last turn is the answer."""

    def __init__(self, toolbox: Toolbox) -> None:
        self.tools = [
            self._tool(tool.name, toolbox, tool.description, tool.parameters)
            for tool in toolbox.tools
        ]
        self.left: list[Content] = []
        """Tool calls of the last reply that are to be executed."""
        self.raised: BaseException | None = None
        """Exception of a tool call. The framework would show it to the model and continue."""
        self.replies = 0
        """Number of replies in this run."""
        self._toolbox = toolbox

    @property
    def cut_off(self) -> bool:
        """Return whether the last reply had tool calls that were not executed."""
        return bool(self.left) and self.replies > self._toolbox.max_turns

    @staticmethod
    def _tool(
        name: str,
        toolbox: Toolbox,
        description: str = "",
        parameters: Mapping[str, object] = MappingProxyType({}),
    ) -> FunctionTool:
        # `Verbatim` replaces the function. Without one, the framework would return the call to the
        # caller.
        return FunctionTool(
            name=name, description=description, input_model=parameters, func=toolbox.call
        )

    async def process(self, context: ChatContext, call_next: Callable[[], Awaitable[None]]) -> None:
        if self.raised is not None:
            raise self.raised
        own = context.options  # the framework's, where it looks for tools
        assert isinstance(own, dict)
        offered = own.setdefault("tools", [])
        offered[:] = self.tools
        context.options = {name: one for name, one in own.items() if offered or name != "tools"}
        await call_next()
        assert isinstance(context.result, ChatResponse)
        self.replies += 1
        reply = context.result.messages[0]
        words = [content for content in reply.contents if content.type != "function_call"]
        self.left = [
            Call(
                "function_call",
                call_id=content.call_id,
                name=content.name,
                arguments=content.arguments,
            )
            for content in reply.contents
            if content.type == "function_call"
        ]
        reply.contents = words + self.left if not self.cut_off else words
        # The framework rejects calls of unknown tools, so register their names until the next
        # request.
        unknown = {str(call.name) for call in self.left} - {tool.name for tool in self.tools}
        offered += [self._tool(name, self._toolbox) for name in unknown]


class Verbatim(FunctionMiddleware):
    """Pass raw calls to the toolbox. The framework would parse and check arguments."""

    def __init__(self, turns: Turns, toolbox: Toolbox) -> None:
        self._turns = turns
        self._toolbox = toolbox
        self._results: list[str] = []

    async def process(
        self, context: FunctionInvocationContext, call_next: Callable[[], Awaitable[None]]
    ) -> None:
        if not self._results:  # the first of a reply's calls, which come one after another
            calls = [(str(call.name), str(call.arguments)) for call in self._turns.left]
            try:
                self._results = await self._toolbox.call_all(calls)
            except Exception as error:
                self._turns.raised = error
                raise
        context.result = self._results.pop(0)


def caller(role: str, system: str, toolbox: Toolbox) -> tuple[Agent, Turns]:
    """Return the agent that calls tools and the middleware that records its replies."""
    turns = Turns(toolbox)
    client = chat_client(
        role,
        toolbox,
        {"max_iterations": toolbox.max_turns + 1, "allow_concurrent_invocation": False},
    )
    agent = Agent(
        client,
        system,
        name=role,
        tools=turns.tools,
        default_options=options(role, toolbox),
        middleware=[turns, Verbatim(turns, toolbox)],
    )
    return agent, turns


class AgentFrameworkTools:
    """Call the model and its tools until a reply has no tool call."""

    roles = ROLES

    async def solve(self, problem: Problem, toolbox: Toolbox) -> str:
        agent, _ = caller(self.roles[0], toolbox.prompts.system, toolbox)
        return (await agent.run(toolbox.prompts.user(problem))).messages[-1].text.strip()

"""The tool-calling agent as one OpenAI Agents SDK agent with function tools, run by `Runner`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from agents import (
    Agent,
    FunctionTool,
    ModelResponse,
    ModelSettings,
    OpenAIChatCompletionsModel,
    RunConfig,
    Runner,
    RunResult,
    TResponseInputItem,
)
from agents.run_config import ToolErrorFormatterArgs, ToolExecutionConfig
from agents.tool_context import ToolContext
from openai.types.responses import ResponseFunctionToolCall

from harness.contracts.toolbox import Toolbox
from harness.records import Problem
from harness_openai_agents_sql.agent import chat_client
from harness_sql.tool_loop.prompts import ROLES


@dataclass
class Session:
    """The part of the rollout that model and tools need."""

    toolbox: Toolbox
    calls: dict[str, ResponseFunctionToolCall] = field(default_factory=dict)
    """Raw calls by number. The SDK sees only numbers as ids and no arguments.

    It would refuse repeated or empty ids and parse arguments itself.
    """
    results: dict[str, str] = field(default_factory=dict)
    """Results by the call's number."""
    replies: int = 0
    """Number of replies in this turn."""
    cut_off: bool = False
    """Whether the last reply had tool calls that were not executed."""

    def numbered(self, call: ResponseFunctionToolCall) -> ResponseFunctionToolCall:
        number = str(len(self.calls))
        self.calls[number] = call
        return call.model_copy(update={"call_id": number, "arguments": "{}"})

    async def result(self, number: str) -> str:
        """Execute all calls of the reply. The SDK would handle unknown tools last."""
        if number not in self.results:
            due = {one: call for one, call in self.calls.items() if one not in self.results}
            texts = await self.toolbox.call_all(
                [(call.name, call.arguments) for call in due.values()]
            )
            self.results |= zip(due, texts, strict=True)
        return self.results[number]

    def written(self, items: list[Any]) -> list[Any]:
        """Return items with the model's calls and ids, and results in the order of calls."""
        results = [item for item in items if item.get("type") == "function_call_output"]
        ordered = iter(sorted(results, key=lambda item: int(item["call_id"])))
        found = (
            next(ordered) if item.get("type") == "function_call_output" else item for item in items
        )
        return [self._written(item) if "call_id" in item else item for item in found]

    def _written(self, item: Any) -> Any:
        call = self.calls[item["call_id"]]
        arguments = {"arguments": call.arguments} if item["type"] == "function_call" else {}
        return {**item, "call_id": call.call_id, **arguments}


class TurnsModel(OpenAIChatCompletionsModel):
    """Record each reply's calls. The reply after the last turn is the answer."""

    def __init__(self, role: str, session: Session) -> None:
        super().__init__(session.toolbox.llm(role).model, chat_client(role, session.toolbox))
        self._session = session

    async def get_response(
        self, system_instructions: str | None, input: Any, *args: Any, **more: Any
    ) -> ModelResponse:
        items = input if isinstance(input, str) else self._session.written(input)
        response = await super().get_response(system_instructions, items, *args, **more)
        session = self._session
        session.replies += 1
        calls = [item for item in response.output if isinstance(item, ResponseFunctionToolCall)]
        words = [item for item in response.output if item not in calls]
        followed = calls if session.replies <= session.toolbox.max_turns else []
        session.cut_off = len(followed) < len(calls)
        response.output = [*words, *map(session.numbered, followed)]
        return response


async def invoke(context: ToolContext[Session], arguments: str) -> str:
    """Return the result of a call of a known tool."""
    return await context.context.result(context.tool_call_id)


async def unknown_tool(call: ToolErrorFormatterArgs[Session]) -> str:
    """Return the result of a call of an unknown tool."""
    return await call.run_context.context.result(call.call_id)


RUN = RunConfig(
    tracing_disabled=True,
    workflow_name="harness",
    tool_execution=ToolExecutionConfig(max_function_tool_concurrency=1),
    tool_not_found_behavior="return_error_to_model",
    tool_error_formatter=unknown_tool,
)


def caller(role: str, instructions: str, session: Session) -> Agent[Session]:
    """Return the agent that calls tools."""
    toolbox = session.toolbox
    # The SDK adds `strict` to a tool's definition, which chat templates print.
    exact = {"tools": [tool.definition for tool in toolbox.tools]} if toolbox.tools else None
    return Agent[Session](
        name=role,
        instructions=instructions,
        model=TurnsModel(role, session),
        model_settings=ModelSettings(**toolbox.llm(role).sampling, extra_body=exact),
        tools=[
            FunctionTool(
                tool.name, tool.description, dict(tool.parameters), invoke, strict_json_schema=False
            )
            for tool in toolbox.tools
        ],
    )


async def follow(
    agent: Agent[Session], input: str | list[TResponseInputItem], session: Session
) -> RunResult:
    """Run the agent until a reply has no tool call or exceeds the limit of turns."""
    session.replies = 0
    max_turns = session.toolbox.max_turns + 1
    return await Runner.run(agent, input, context=session, run_config=RUN, max_turns=max_turns)


class OpenAIAgentsTools:
    """Call the model and its tools until a reply has no tool call."""

    roles = ROLES

    async def solve(self, problem: Problem, toolbox: Toolbox) -> str:
        session = Session(toolbox)
        agent = caller(self.roles[0], toolbox.prompts.system, session)
        run = await follow(agent, toolbox.prompts.user(problem), session)
        return str(run.final_output).strip()

"""The tool-calling agent as one agent of the OpenAI Agents SDK with function tools, run by its `Runner`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from agents import Agent, FunctionTool, ModelResponse, ModelSettings, OpenAIChatCompletionsModel, RunConfig, Runner
from agents.run_config import CallModelData, ModelInputData, ToolErrorFormatterArgs, ToolExecutionConfig
from agents.tool_context import ToolContext
from openai.types.responses import ResponseFunctionToolCall

from harness.programs.tool_loop.prompts import ROLES
from harness.records import Problem
from harness.toolbox import Toolbox
from harness_openai_agents_sql.agent import chat_client


@dataclass
class Session:
    """What model and tools need of the rollout."""

    toolbox: Toolbox
    left: list[ResponseFunctionToolCall] = field(default_factory=list)
    """Calls of the last reply that are to be carried out."""
    results: dict[str, str] = field(default_factory=dict)
    """By the call's id."""

    async def result(self, call_id: str) -> str:
        """Carries out what was called before it first: the SDK leaves calls of unknown tools to the end."""
        while call_id not in self.results:
            call = self.left.pop(0)
            self.results[call.call_id] = await self.toolbox.call(call.name, call.arguments)
        return self.results[call_id]


class TurnsModel(OpenAIChatCompletionsModel):
    """Notes the calls of each reply; the reply after the last turn is the answer, whatever it calls."""

    def __init__(self, session: Session) -> None:
        super().__init__(session.toolbox.llm(ROLES[0]).model, chat_client(ROLES[0], session.toolbox))
        self._session = session
        self._replies = 0

    async def get_response(self, *args: Any, **kwargs: Any) -> ModelResponse:
        response = await super().get_response(*args, **kwargs)
        self._replies += 1
        calls = [item for item in response.output if isinstance(item, ResponseFunctionToolCall)]
        if self._replies > self._session.toolbox.max_turns:
            response.output = [item for item in response.output if item not in calls]
        self._session.left = calls
        return response


async def invoke(context: ToolContext[Session], arguments: str) -> str:
    return await context.context.result(context.tool_call_id)


async def unknown_tool(call: ToolErrorFormatterArgs[Session]) -> str:
    return await call.run_context.context.result(call.call_id)


def in_order(data: CallModelData[Session]) -> ModelInputData:
    """Results in the order of their calls."""
    items: list[Any] = data.model_data.input
    calls = [item["call_id"] for item in items if item.get("type") == "function_call"]
    results = [item for item in items if item.get("type") == "function_call_output"]
    ordered = iter(sorted(results, key=lambda item: calls.index(item["call_id"])))
    data.model_data.input = [next(ordered) if item.get("type") == "function_call_output" else item for item in items]
    return data.model_data


RUN = RunConfig(
    tracing_disabled=True,
    workflow_name="harness",
    tool_execution=ToolExecutionConfig(max_function_tool_concurrency=1),
    tool_not_found_behavior="return_error_to_model",
    tool_error_formatter=unknown_tool,
    call_model_input_filter=in_order,
)


class OpenAIAgentsTools:
    """The runner asks the model and calls the tools, until a reply calls none."""

    roles = ROLES

    async def solve(self, problem: Problem, toolbox: Toolbox) -> str:
        session = Session(toolbox)
        # The SDK adds `strict` to a tool's definition, which chat templates print.
        exact: dict[str, Any] = {"tools": [tool.definition for tool in toolbox.tools]}
        agent = Agent[Session](
            name=self.roles[0],
            instructions=toolbox.prompts.system,
            model=TurnsModel(session),
            model_settings=ModelSettings(**toolbox.llm(self.roles[0]).sampling, extra_body=exact),
            tools=[
                FunctionTool(tool.name, tool.description, dict(tool.parameters), invoke, strict_json_schema=False)
                for tool in toolbox.tools
            ],
        )
        run = await Runner.run(
            agent,
            toolbox.prompts.user(problem),
            context=session,
            run_config=RUN,
            max_turns=toolbox.max_turns + 1,
        )
        return str(run.final_output).strip()

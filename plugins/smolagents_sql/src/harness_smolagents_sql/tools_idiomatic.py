"""The tool-calling agent as smolagents' documentation has it: a ToolCallingAgent with tools."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from smolagents import OpenAIServerModel, Tool, ToolCallingAgent
from smolagents.memory import ActionStep
from smolagents.models import (
    REMOVE_PARAMETER,
    ChatMessage,
    ChatMessageToolCall,
    ChatMessageToolCallFunction,
    MessageRole,
)
from smolagents.monitoring import LogLevel

from harness.contracts.environments import Tool as EnvironmentTool
from harness.contracts.toolbox import Toolbox
from harness.records import Problem
from harness_smolagents_sql.agent import async_client, chat_model
from harness_smolagents_sql.bridge import Bridge
from harness_sql.tool_loop.prompts import ROLES

ANSWER = "final_answer"
"""smolagents' own tool, which ends a run."""


class TextAnswers(OpenAIServerModel):
    """Take the text of a reply without a tool call as the final answer.

    smolagents would refuse the reply and ask again until the agent's steps end.
    """

    def parse_tool_calls(self, message: ChatMessage) -> ChatMessage:
        """Return the message with the call that its text has, else with the final answer."""
        try:
            return super().parse_tool_calls(message)
        except Exception:  # as ToolCallingAgent catches it: no JSON, or JSON that is no call
            answer = ChatMessageToolCallFunction({"answer": message.content or ""}, ANSWER)
            message.role = MessageRole.ASSISTANT
            message.tool_calls = [ChatMessageToolCall(answer, ANSWER, "function")]
            return message


class SerialAgent(ToolCallingAgent):
    """Carry out the calls of one reply in order, so that a rollout does not depend on threads.

    smolagents would start them in a thread each and sort their results by id.
    """

    def process_tool_calls(
        self, chat_message: ChatMessage, memory_step: ActionStep
    ) -> Generator[Any]:
        """Yield calls and results, and add them to the step."""
        steps: list[ActionStep] = []
        for call in chat_message.tool_calls or ():
            steps.append(replace(memory_step))
            yield from super().process_tool_calls(
                replace(chat_message, tool_calls=[call]), steps[-1]
            )
        memory_step.tool_calls = [call for step in steps for call in step.tool_calls or ()]
        memory_step.observations = "\n".join(step.observations or "" for step in steps)


class BridgedTool(Tool):
    """A smolagents tool that runs its work in the event loop."""

    name = "tool"
    description = ""
    inputs: dict[str, Any] = {}  # noqa: RUF012  (smolagents reads the class's, then the instance's)
    output_type = "string"
    skip_forward_signature_validation = True

    def __init__(
        self,
        name: str,
        description: str,
        parameters: Mapping[str, Any],
        work: Callable[[dict[str, Any]], Any],
    ) -> None:
        self.name = name
        self.description = description
        self.inputs = _inputs(parameters)
        self._work = work
        super().__init__()

    def forward(self, *unnamed: Any, **arguments: Any) -> str:
        """Return the result of the tool as text."""
        # smolagents passes a single value without a name.
        named = dict(zip(self.inputs, unnamed, strict=False))
        return str(self._work({**named, **arguments}))


def _inputs(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Convert a JSON schema of arguments to smolagents' inputs, which are optional if nullable."""
    required = parameters.get("required", ())
    inputs: dict[str, Any] = {}
    for name, schema in parameters.get("properties", {}).items():
        inputs[name] = {"type": "any", "description": "", **schema}
        if name not in required:
            inputs[name]["nullable"] = True
    return inputs


def as_smolagents(tool: EnvironmentTool, toolbox: Toolbox, bridge: Bridge) -> BridgedTool:
    """Convert a tool of the environment to smolagents' type."""

    def work(arguments: dict[str, Any]) -> str:
        return bridge.call(toolbox.call(tool.name, arguments))

    return BridgedTool(tool.name, tool.description, tool.parameters, work)


def bridged_client(role: str, toolbox: Toolbox, bridge: Bridge) -> Any:
    """Return what smolagents needs of a synchronous OpenAI client."""
    create: Callable[..., Awaitable[Any]] = async_client(role, toolbox).chat.completions.create

    async def reply(**request: Any) -> Any:
        return await create(**request)

    def wait(**request: Any) -> Any:
        return bridge.call(reply(**request))

    return SimpleNamespace(chat=SimpleNamespace(completions=SimpleNamespace(create=wait)))


async def follow(
    role: str, system: str, user: str, toolbox: Toolbox, tools: Sequence[Tool], bridge: Bridge
) -> str:
    """Return the agent's final answer as text."""
    # `required` would make the server constrain sampling; `stop` is no sampling of the run.
    changed: dict[str, Any] = {"tool_choice": "auto", "stop": REMOVE_PARAMETER}
    if not tools:
        changed |= {"tools": REMOVE_PARAMETER, "tool_choice": REMOVE_PARAMETER}
    client = bridged_client(role, toolbox, bridge)
    model = chat_model(role, toolbox, client, TextAnswers, **changed)
    agent = SerialAgent(
        list(tools),
        model,
        instructions=system,
        max_steps=toolbox.max_turns,
        verbosity_level=LogLevel.OFF,
    )
    answer = await bridge.run(lambda: agent.run(user))
    return "" if answer is None else str(answer).strip()


class SmolagentsToolsIdiomatic:
    """`max_turns` bounds the agent's steps; then it asks once more, without tools."""

    roles = ROLES

    async def solve(self, problem: Problem, toolbox: Toolbox) -> str:
        bridge = Bridge()
        tools = [as_smolagents(tool, toolbox, bridge) for tool in toolbox.tools]
        prompts = toolbox.prompts
        return await follow(ROLES[0], prompts.system, prompts.user(problem), toolbox, tools, bridge)

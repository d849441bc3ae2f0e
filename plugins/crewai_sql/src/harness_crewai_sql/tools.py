"""The tool-calling agent as a CrewAI Flow around a model with tools."""

from __future__ import annotations

from typing import Any, Literal

from harness_crewai_sql.agent import AsyncLLM, chat_model  # isort: skip  (first, it keeps telemetry off)
from crewai.events.utils.console_formatter import set_suppress_console_output
from crewai.flow.flow import Flow, or_, router, start
from pydantic import BaseModel, PrivateAttr

from harness.contracts.toolbox import Toolbox
from harness.records import Problem
from harness_sql.tool_loop.prompts import ROLES


class ToolLLM(AsyncLLM):
    """Keep the text of replies with tool calls, which CrewAI drops."""

    _words: str = PrivateAttr(default="")

    # Static in CrewAI, which calls it on the instance.
    def _extract_chat_finish_reason_and_id(self, response: Any) -> tuple[str | None, str | None]:  # type: ignore[override]
        self._words = response.choices[0].message.content or ""
        return super()._extract_chat_finish_reason_and_id(response)

    async def reply(self, messages: list[Any]) -> tuple[str, list[Any]]:
        """Return the model's text and its tool calls."""
        answer = await self.acall(messages)
        return self._words, answer if isinstance(answer, list) else []


class Conversation(BaseModel):
    """The flow's state."""

    messages: list[dict[str, Any]] = []
    calls: list[Any] = []
    """Tool calls of the last reply."""
    words: str = ""
    replies: int = 0


class ToolFlow(Flow[Conversation]):
    """take a turn -> (answer | call tools -> take a turn ...)."""

    toolbox: Any
    llm: Any

    @start()
    async def begin(self) -> None:
        pass

    @router(or_("begin", "called"))
    async def take_turn(self) -> Literal["calls", "answered"]:
        state = self.state
        state.words, state.calls = await self.llm.reply(state.messages)
        state.replies += 1
        # The reply after the last turn is the answer, even if it has tool calls.
        return "calls" if state.calls and state.replies <= self.toolbox.max_turns else "answered"

    @router("calls")
    async def call_tools(self) -> Literal["called"]:
        state = self.state
        tool_calls = [
            {"id": call.id, "type": "function", "function": call.function.model_dump()}
            for call in state.calls
        ]
        state.messages.append(
            {"role": "assistant", "content": state.words or None, "tool_calls": tool_calls}
        )
        texts = await self.toolbox.call_all(
            [(call.function.name, call.function.arguments) for call in state.calls]
        )
        for call, text in zip(state.calls, texts, strict=True):
            state.messages.append({"role": "tool", "tool_call_id": call.id, "content": text})
        return "called"


async def follow(role: str, toolbox: Toolbox, conversation: Conversation) -> Conversation:
    """Run one flow until a reply has no tool call or exceeds the limit of turns."""
    set_suppress_console_output(True)  # of this rollout's context only
    # As parameters of the model: CrewAI rewrites tool schemas for OpenAI's strict mode.
    offered = {"tools": [tool.definition for tool in toolbox.tools]} if toolbox.tools else {}
    flow = ToolFlow(
        toolbox=toolbox,
        llm=chat_model(role, toolbox, ToolLLM, additional_params=offered),
        tracing=False,
        suppress_flow_events=True,
        max_method_calls=toolbox.max_turns + 2,
    )
    flow.state.messages = conversation.messages
    await flow.kickoff_async()
    state: Conversation = flow.state
    return state


class CrewAITools:
    """model -> (tools -> model ...) -> answer."""

    roles = ROLES

    async def solve(self, problem: Problem, toolbox: Toolbox) -> str:
        begun = Conversation(messages=toolbox.prompts.messages(problem))
        return (await follow(self.roles[0], toolbox, begun)).words.strip()

"""Deep agents that serve all rollouts: building one takes 0.2 s of a core."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from deepagents import create_deep_agent
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatResult
from langchain_core.tools import StructuredTool
from langchain_openai import ChatOpenAI
from langsmith import tracing_context

from harness.contracts.toolbox import Toolbox
from harness_langgraph_sql.agent import chat_model

RECURSION_LIMIT = 10_000
"""LangGraph's own limit. It counts steps of the graph, most of which make no call."""
TOOL_PARAMETERS = ("tools", "tool_choice", "parallel_tool_calls")
"""Parameters of a request that go with tools."""


class CallsUsed(Exception):
    """The rollout has made all its calls of the model."""


@dataclass
class Rollout:
    """What one rollout's agent uses.

    Attributes:
        calls: How many more calls of the model the agent and its subagents may make.
        answers_last: Whether the last call must answer: its tool calls are not carried out.
    """

    toolbox: Toolbox
    role: str
    calls: int
    answers_last: bool
    last_query: str = ""


ROLLOUT: ContextVar[Rollout] = ContextVar("harness_deepagents_rollout")
"""The rollout of the current task."""


class RolloutChatOpenAI(ChatOpenAI):
    """Call the model of the current rollout, at most as often as the rollout allows."""

    async def _agenerate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: Any = None,
        **more: Any,
    ) -> ChatResult:
        rollout = ROLLOUT.get()
        if rollout.calls <= 0:
            raise CallsUsed
        rollout.calls -= 1
        if not rollout.toolbox.tools:  # nothing to plan for or to keep in files
            more = {name: value for name, value in more.items() if name not in TOOL_PARAMETERS}
        model = chat_model(rollout.toolbox.llm(rollout.role), rollout.toolbox)
        result = await model._agenerate(messages, stop, run_manager, **more)
        reply = result.generations[0].message
        if rollout.answers_last and not rollout.calls and _calls_tools(reply):
            raise CallsUsed
        return result


def _calls_tools(reply: BaseMessage) -> bool:
    return isinstance(reply, AIMessage) and bool(reply.tool_calls or reply.invalid_tool_calls)


def environment_tool(definition: dict[str, Any]) -> StructuredTool:
    """Return a tool that the current rollout's environment carries out."""
    function = definition["function"]

    async def run(**arguments: Any) -> str:
        return await ROLLOUT.get().toolbox.call(function["name"], arguments)

    return StructuredTool(
        name=function["name"],
        description=function["description"],
        args_schema=function["parameters"],
        coroutine=run,
    )


@lru_cache(maxsize=32)
def agent_with(system: str, definitions: str) -> Any:
    """Return the deep agent of a system prompt and of tools, as JSON of their definitions."""
    tools = [environment_tool(definition) for definition in json.loads(definitions)]
    return deep_agent(system, tools)


def deep_agent(system: str, tools: Sequence[Any]) -> Any:
    """Return a deep agent of the current rollout's model."""

    async def no_key() -> str:
        raise AssertionError("each rollout has its own client")

    model = RolloutChatOpenAI(
        model="policy", base_url="http://localhost", api_key=no_key, use_responses_api=False
    )
    return create_deep_agent(model, tools, system_prompt=system)


async def follow(agent: Any, user: str, rollout: Rollout) -> str:
    """Return the last reply's text, or nothing if the calls do not suffice."""
    token = ROLLOUT.set(rollout)
    start = {"messages": [("user", user)]}
    try:
        with tracing_context(enabled=False):
            final = await agent.ainvoke(start, {"recursion_limit": RECURSION_LIMIT})
    except CallsUsed:
        return ""
    finally:
        ROLLOUT.reset(token)
    return str(final["messages"][-1].text).strip()

"""The tool-calling agent as a LangGraph StateGraph of two nodes, `model` and `tools`."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypedDict

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.outputs import ChatResult
from langchain_openai import ChatOpenAI
from langgraph.graph import START, StateGraph
from langgraph.runtime import Runtime
from langsmith import tracing_context

from harness.contracts.toolbox import Toolbox
from harness.records import Problem
from harness_langgraph_sql.agent import Context, chat_model
from harness_sql.tool_loop.prompts import ROLES


@dataclass(frozen=True)
class Caller(Context):
    """Context with the role that calls tools."""

    role: str = ROLES[0]


class State(TypedDict):
    """The conversation and its number of replies."""

    messages: Annotated[list[AnyMessage], operator.add]
    replies: int


class VerbatimChatOpenAI(ChatOpenAI):
    """Keep raw tool calls in `additional_kwargs`.

    LangChain parses and rewrites arguments, moves calls with invalid JSON behind the others, and
    raises
    if arguments are JSON but not an object.
    """

    def _create_chat_result(
        self, response: Any, generation_info: dict[str, Any] | None = None
    ) -> ChatResult:
        found = response if isinstance(response, dict) else response.model_dump()
        calls = [choice["message"].pop("tool_calls", None) for choice in found.get("choices") or ()]
        result = super()._create_chat_result(found, generation_info)
        for generation, tool_calls in zip(result.generations, calls, strict=True):
            if tool_calls:
                generation.message.additional_kwargs["tool_calls"] = tool_calls
        return result


async def model(state: State, runtime: Runtime[Caller]) -> dict[str, Any]:
    """Call the model with all tools."""
    toolbox = runtime.context.toolbox
    llm = chat_model(toolbox.llm(runtime.context.role), toolbox, VerbatimChatOpenAI)
    offered = {"tools": [tool.definition for tool in toolbox.tools]} if toolbox.tools else {}
    reply = await llm.bind(**offered).ainvoke(state["messages"])
    return {"messages": [reply], "replies": state["replies"] + 1}


async def tools(state: State, runtime: Runtime[Caller]) -> dict[str, Any]:
    """Execute the calls of the last reply, in order."""
    calls = state["messages"][-1].additional_kwargs["tool_calls"]
    requests = [(call["function"]["name"], call["function"]["arguments"]) for call in calls]
    texts = await runtime.context.toolbox.call_all(requests)
    return {
        "messages": [
            ToolMessage(text, tool_call_id=call["id"])
            for call, text in zip(calls, texts, strict=True)
        ]
    }


async def after_reply(state: State, runtime: Runtime[Caller]) -> Literal["tools", "__end__"]:
    """End the run after the last turn's reply, even if it has tool calls."""
    called = "tool_calls" in state["messages"][-1].additional_kwargs
    return (
        "tools" if called and state["replies"] <= runtime.context.toolbox.max_turns else "__end__"
    )


class LangGraphTools:
    """model -> (tools -> model ...) -> answer."""

    roles: tuple[str, ...] = ROLES

    def __init__(self) -> None:
        graph = StateGraph(State, context_schema=Caller)
        graph.add_node("model", model)
        graph.add_node("tools", tools)
        graph.add_edge(START, "model")
        graph.add_conditional_edges("model", after_reply)
        graph.add_edge("tools", "model")
        self.graph = graph.compile()

    async def solve(self, problem: Problem, toolbox: Toolbox) -> str:
        prompts = toolbox.prompts
        messages = await self.follow(
            [SystemMessage(prompts.system), HumanMessage(prompts.user(problem))], Caller(toolbox)
        )
        return str(messages[-1].text).strip()

    async def follow(self, messages: Sequence[AnyMessage], caller: Caller) -> list[AnyMessage]:
        """Return the messages with all tool results and the last reply."""
        start = State(messages=list(messages), replies=0)
        with tracing_context(enabled=False):
            final = await self.graph.ainvoke(
                start, {"recursion_limit": 2 * caller.toolbox.max_turns + 2}, context=caller
            )
        conversation: list[AnyMessage] = final["messages"]
        assert isinstance(conversation[-1], AIMessage)
        return conversation

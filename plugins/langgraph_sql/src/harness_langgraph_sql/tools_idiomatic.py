"""The tool-calling agent as in LangGraph's documentation: bound tools and a ToolNode."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from langchain_core.tools import BaseTool, StructuredTool
from langgraph.errors import GraphRecursionError
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition
from langsmith import tracing_context

from harness.contracts.environments import Tool
from harness.contracts.toolbox import Toolbox
from harness.records import Problem
from harness_langgraph_sql.agent import chat_model
from harness_sql.tool_loop.prompts import ROLES


def as_langchain(tool: Tool, toolbox: Toolbox) -> StructuredTool:
    """Convert a tool of the environment to LangChain's type."""

    async def run(**arguments: Any) -> str:
        return await toolbox.call(tool.name, arguments)

    return StructuredTool(
        name=tool.name,
        description=tool.description,
        args_schema=dict(tool.parameters),
        coroutine=run,
    )


async def follow(
    role: str,
    toolbox: Toolbox,
    tools: Sequence[BaseTool],
    messages: Sequence[Mapping[str, str]],
    steps: int,
) -> str:
    """Return the last reply's text, or nothing if the graph exceeds its limit of steps."""
    llm = chat_model(toolbox.llm(role), toolbox)
    model = llm.bind_tools(tools) if tools else llm

    async def assistant(state: MessagesState) -> dict[str, Any]:
        return {"messages": [await model.ainvoke(state["messages"])]}

    graph = StateGraph(MessagesState)
    graph.add_node("assistant", assistant)
    graph.add_node("tools", ToolNode(tools))
    graph.add_edge(START, "assistant")
    graph.add_conditional_edges("assistant", tools_condition)
    graph.add_edge("tools", "assistant")
    start: Any = {"messages": [(one["role"], one["content"]) for one in messages]}
    with tracing_context(enabled=False):
        try:
            final = await graph.compile().ainvoke(start, {"recursion_limit": steps})
        except GraphRecursionError:
            return ""
    return str(final["messages"][-1].text).strip()


class LangGraphToolsIdiomatic:
    """LangChain parses calls and LangGraph executes them; the recursion limit bounds the rounds."""

    roles = ROLES

    async def solve(self, problem: Problem, toolbox: Toolbox) -> str:
        tools = [as_langchain(tool, toolbox) for tool in toolbox.tools]
        return await follow(
            ROLES[0], toolbox, tools, toolbox.prompts.messages(problem), 2 * toolbox.max_turns + 1
        )

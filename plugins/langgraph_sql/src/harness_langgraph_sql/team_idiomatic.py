"""The team as in LangGraph's documentation: a supervisor that hands over by `Command(goto=...)`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal, TypedDict

from langchain_core.messages import HumanMessage, SystemMessage, ToolMessage
from langgraph.errors import GraphRecursionError
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import Command, Send
from langsmith import tracing_context

from harness.contracts.toolbox import Arguments, Toolbox
from harness.records import Problem
from harness_langgraph_sql.agent import chat_model
from harness_langgraph_sql.tools_idiomatic import LangGraphToolsIdiomatic, as_langchain
from harness_teams.names import CRITIC, PLANNER, ROLES
from harness_teams.prompts import TeamPrompts
from harness_teams.team import Seat
from harness_teams.workers import Workers


class State(MessagesState):
    """The planner's conversation."""

    checked: bool


class Call(TypedDict):
    """A call of the planner, as sent to a worker's node."""

    id: str
    name: str
    args: Arguments | None


class Work:
    """The nodes of one rollout's graph."""

    def __init__(self, problem: Problem, toolbox: Toolbox) -> None:
        self._problem, self._toolbox = problem, toolbox
        self._prompts: TeamPrompts = toolbox.prompts
        self._workers = Workers(problem.task_id, toolbox, work)
        self._part = self._workers.toolbox

    def graph(self) -> Any:
        """planner -> (workers -> planner ...) -> critic -> (end | planner ...)."""
        graph = StateGraph(State)
        graph.add_node("planner", self.planner)
        graph.add_node("worker", self.worker)
        graph.add_node("critic", self.critic)
        graph.add_edge(START, "planner")
        return graph.compile()

    async def planner(self, state: State) -> Command[Literal["worker", "critic", "__end__"]]:
        """Hand over all calls of a reply to workers at once, or answer."""
        llm = chat_model(self._toolbox.llm(PLANNER), self._toolbox)
        tools = [as_langchain(tool, self._part) for tool in self._part.tools]
        reply = await (llm.bind_tools(tools) if tools else llm).ainvoke(state["messages"])
        update = {"messages": [reply]}
        calls = [*reply.tool_calls, *reply.invalid_tool_calls]
        if calls:
            sent = [
                Send("worker", Call(id=one["id"] or "", name=one["name"] or "", args=one["args"]))
                for one in calls
            ]
            return Command(goto=sent, update=update)
        return Command(goto="__end__" if state["checked"] else "critic", update=update)

    async def worker(self, state: Call) -> Command[Literal["planner"]]:
        """Run the worker named in the call. Its report is the call's result."""
        text = await self._part.call(
            state["name"], state["args"] if state["args"] is not None else ""
        )
        return Command(
            goto="planner", update={"messages": [ToolMessage(text, tool_call_id=state["id"])]}
        )

    async def critic(self, state: State) -> Command[Literal["planner", "__end__"]]:
        """Read the answer. The planner continues with the remarks."""
        texts = self._prompts.critic
        answer = str(state["messages"][-1].text).strip()
        review = replace(self._problem, context=self._prompts.review(self._workers.reports, answer))
        llm = chat_model(self._toolbox.llm(CRITIC), self._toolbox)
        reply = str(
            (
                await llm.ainvoke([SystemMessage(texts.system), HumanMessage(texts.user(review))])
            ).text
        )
        if self._prompts.approves(reply):
            return Command(goto="__end__")
        return Command(goto="planner", update={"messages": [HumanMessage(reply)], "checked": True})


async def work(role: str, task: Problem, part: Toolbox) -> str:
    """Run a worker."""
    return await LangGraphToolsIdiomatic().solve(
        task, Seat(part, role, part.prompts.worker, part.max_turns)
    )


class LangGraphTeamIdiomatic:
    """Workers of one reply run in one step; the recursion limit bounds the steps of both passes."""

    roles = ROLES

    async def solve(self, problem: Problem, toolbox: Toolbox) -> str:
        messages = toolbox.prompts.planner.messages(problem)
        start: object = {
            "messages": [(one["role"], one["content"]) for one in messages],
            "checked": False,
        }
        with tracing_context(enabled=False):
            try:
                final = (
                    await Work(problem, toolbox)
                    .graph()
                    .ainvoke(start, {"recursion_limit": 4 * toolbox.max_turns + 3})
                )
            except GraphRecursionError:
                return ""
        return str(final["messages"][-1].text).strip()

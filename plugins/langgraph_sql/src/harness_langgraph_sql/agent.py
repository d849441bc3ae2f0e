"""The self-correcting SQL agent as a LangGraph StateGraph."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypedDict

from langchain_openai import ChatOpenAI
from langgraph.graph import START, StateGraph
from langgraph.runtime import Runtime
from langsmith import tracing_context

from harness.contracts.toolbox import LLM, Toolbox
from harness.records import Problem
from harness_sql.self_correcting.prompts import Prompt
from harness_sql.self_correcting.roles import ROLES


@dataclass(frozen=True)
class Context:
    """Context of one run of the graph. LangGraph requires a separate class for it."""

    toolbox: Toolbox


class State(TypedDict, total=False):
    """State of one run of the graph. Each node returns the keys that it changes."""

    problem: Problem
    sql: str
    result: str
    remarks: str
    queries: int
    """Queries written so far."""


async def write(state: State, runtime: Runtime[Context]) -> State:
    """Write a query (the first node)."""
    toolbox = runtime.context.toolbox
    reply = await ask(toolbox, toolbox.prompts.write(state["problem"]))
    return {"sql": toolbox.prompts.parse_sql(reply), "queries": 1}


async def execute(state: State, runtime: Runtime[Context]) -> State:
    """Run the query."""
    return {"result": await runtime.context.toolbox.execute(state["sql"])}


async def check(state: State, runtime: Runtime[Context]) -> State:
    """Check the query by its result."""
    toolbox = runtime.context.toolbox
    return {
        "remarks": await ask(
            toolbox, toolbox.prompts.check(state["problem"], state["sql"], state["result"])
        )
    }


async def rewrite(state: State, runtime: Runtime[Context]) -> State:
    """Rewrite the query by the remarks."""
    toolbox = runtime.context.toolbox
    prompt = toolbox.prompts.rewrite(
        state["problem"], state["sql"], state["result"], state["remarks"]
    )
    return {
        "sql": toolbox.prompts.parse_sql(await ask(toolbox, prompt)),
        "queries": state["queries"] + 1,
    }


# Asynchronous, like the nodes: LangGraph runs synchronous functions in a thread.
async def after_writing(state: State, runtime: Runtime[Context]) -> Literal["execute", "__end__"]:
    """End the run without a check after the last allowed query."""
    return "execute" if state["queries"] < runtime.context.toolbox.max_turns else "__end__"


async def after_check(state: State, runtime: Runtime[Context]) -> Literal["rewrite", "__end__"]:
    """End the run if the check approves the query."""
    return "__end__" if runtime.context.toolbox.prompts.approves(state["remarks"]) else "rewrite"


async def ask(toolbox: Toolbox, prompt: Prompt) -> str:
    """Make one call of a role, without a history."""
    llm = toolbox.llm(prompt.role)
    message = await chat_model(llm, toolbox).ainvoke(
        [("system", prompt.system), ("human", prompt.user)]
    )
    return str(message.text)


def chat_model(llm: LLM, toolbox: Toolbox, kind: type[ChatOpenAI] = ChatOpenAI) -> ChatOpenAI:
    """Return LangChain's model of a role's endpoint on the runner's connection pool."""

    async def api_key() -> str:
        return llm.api_key

    return kind(
        model=llm.model,
        base_url=llm.base_url,
        api_key=api_key,  # asynchronous, so that no second, synchronous client is built
        http_async_client=toolbox.http_client,
        timeout=llm.timeout_s,
        max_retries=0,
        use_responses_api=False,
        cache=False,
        **llm.sampling,
    )


class LangGraphSQL:
    """write -> execute -> check -> (end | rewrite -> ...); the last query is unchecked."""

    roles = ROLES

    def __init__(self) -> None:
        graph = StateGraph(State, context_schema=Context)
        graph.add_node("write", write)
        graph.add_node("execute", execute)
        graph.add_node("check", check)
        graph.add_node("rewrite", rewrite)
        graph.add_edge(START, "write")
        graph.add_conditional_edges("write", after_writing)
        graph.add_edge("execute", "check")
        graph.add_conditional_edges("check", after_check)
        graph.add_conditional_edges("rewrite", after_writing)
        self.graph = graph.compile()

    async def solve(self, problem: Problem, toolbox: Toolbox) -> str:
        with tracing_context(
            enabled=False
        ):  # LangSmith tracing stays off whatever the environment says
            final = await self.graph.ainvoke(
                {"problem": problem},
                {"recursion_limit": 3 * toolbox.max_turns + 1},
                context=Context(toolbox),
            )
        return str(final["sql"])

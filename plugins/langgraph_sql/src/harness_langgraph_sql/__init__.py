"""LangGraph plugin of harness."""

from __future__ import annotations

from harness.hookspecs import AgentSpec, hookimpl
from harness.programs.self_correcting_sql.prompts import ROLES

HARNESS_API = 1


@hookimpl
def harness_agents() -> list[AgentSpec]:
    return [
        AgentSpec(
            "langgraph_sql",
            "harness_langgraph_sql.agent:LangGraphSQL",
            "LangGraph: a StateGraph with conditional edges",
            roles=ROLES,
            frameworks=("langgraph", "langchain-core", "langchain-openai"),
        )
    ]

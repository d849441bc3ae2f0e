"""DeepAgents plugin of harness."""

from __future__ import annotations

from functools import partial

from harness.contracts.hookspecs import AgentSpec, hookimpl

HARNESS_API = 1
FRAMEWORKS = ("deepagents", "langchain", "langgraph", "langchain-core", "langchain-openai")

_sql = partial(AgentSpec, program="self_correcting_sql", frameworks=FRAMEWORKS)
_tools = partial(AgentSpec, program="tool_loop", frameworks=FRAMEWORKS)


@hookimpl
def harness_agents() -> list[AgentSpec]:
    return [
        _sql(
            "deepagents_sql_idiomatic",
            f"{__name__}.idiomatic:DeepAgentsSQLIdiomatic",
            "DeepAgents: a deep agent with a tool that runs queries",
            roles=("write_query",),
            strict=False,
        ),
        _tools(
            "deepagents_tools_idiomatic",
            f"{__name__}.tools_idiomatic:DeepAgentsToolsIdiomatic",
            "DeepAgents: a deep agent with the environment's tools",
            strict=False,
        ),
    ]

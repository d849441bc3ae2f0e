"""smolagents plugin of harness."""

from __future__ import annotations

from functools import partial

from harness.contracts.hookspecs import AgentSpec, hookimpl

HARNESS_API = 1
FRAMEWORKS = ("smolagents", "openai")

_sql = partial(AgentSpec, program="self_correcting_sql", frameworks=FRAMEWORKS)
_tools = partial(AgentSpec, program="tool_loop", frameworks=FRAMEWORKS)


@hookimpl
def harness_agents() -> list[AgentSpec]:
    return [
        _sql(
            "smolagents_sql",
            f"{__name__}.agent:SmolagentsSQL",
            "smolagents: its model class, run in code",
        ),
        _sql(
            "smolagents_sql_idiomatic",
            f"{__name__}.idiomatic:SmolagentsSQLIdiomatic",
            "smolagents: a ToolCallingAgent with an execute tool",
            roles=("write_query",),
            strict=False,
        ),
        _tools(
            "smolagents_tools_idiomatic",
            f"{__name__}.tools_idiomatic:SmolagentsToolsIdiomatic",
            "smolagents: a ToolCallingAgent with tools made from their schemas",
            strict=False,
        ),
    ]

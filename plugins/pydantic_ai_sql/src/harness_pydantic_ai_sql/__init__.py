"""Pydantic AI plugin of harness."""

from __future__ import annotations

from functools import partial

from harness.contracts.hookspecs import AgentSpec, hookimpl

HARNESS_API = 1
FRAMEWORKS = ("pydantic-ai-slim", "openai")

_sql = partial(AgentSpec, program="self_correcting_sql", frameworks=FRAMEWORKS)
_tools = partial(AgentSpec, program="tool_loop", frameworks=FRAMEWORKS)


@hookimpl
def harness_agents() -> list[AgentSpec]:
    return [
        _sql(
            "pydantic_ai_sql",
            f"{__name__}.agent:PydanticAISQL",
            "Pydantic AI: an agent a role, run in code",
        ),
        _sql(
            "pydantic_ai_sql_idiomatic",
            f"{__name__}.idiomatic:PydanticAISQLIdiomatic",
            "Pydantic AI: one agent that calls an execute tool itself",
            roles=("write_query",),
            strict=False,
        ),
        _tools(
            "pydantic_ai_tools",
            f"{__name__}.tools:PydanticAITools",
            "Pydantic AI: its messages and its model, asked directly",
        ),
        _tools(
            "pydantic_ai_tools_idiomatic",
            f"{__name__}.tools_idiomatic:PydanticAIToolsIdiomatic",
            "Pydantic AI: an agent with tools made from their schemas",
            strict=False,
        ),
    ]

"""Pydantic AI plugin of harness."""

from __future__ import annotations

import harness_sql as sql
from harness import AgentSpec, hookimpl

HARNESS_API = 1


@hookimpl
def harness_agents() -> list[AgentSpec]:
    return [
        AgentSpec(
            "pydantic_ai_sql",
            "harness_pydantic_ai_sql.agent:PydanticAISQL",
            "Pydantic AI: one agent a role, run in code",
            roles=sql.ROLES,
            frameworks=("pydantic-ai-slim",),
            program="self_correcting_sql",
        )
    ]

"""Pydantic AI plugin of harness."""

from __future__ import annotations

from harness.hookspecs import AgentSpec, hookimpl
from harness.programs.self_correcting_sql.prompts import ROLES

HARNESS_API = 1


@hookimpl
def harness_agents() -> list[AgentSpec]:
    return [
        AgentSpec(
            "pydantic_ai_sql",
            "harness_pydantic_ai_sql.agent:PydanticAISQL",
            "Pydantic AI: one agent a role, run in code",
            roles=ROLES,
            frameworks=("pydantic-ai-slim",),
        )
    ]

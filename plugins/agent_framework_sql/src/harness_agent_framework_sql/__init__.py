"""Microsoft Agent Framework plugin of harness."""

from __future__ import annotations

from functools import partial

from harness.contracts.hookspecs import AgentSpec, hookimpl

HARNESS_API = 1
FRAMEWORKS = ("agent-framework-core", "agent-framework-openai")

_sql = partial(AgentSpec, program="self_correcting_sql", frameworks=FRAMEWORKS)
_tools = partial(AgentSpec, program="tool_loop", frameworks=FRAMEWORKS)
_dialogue = partial(AgentSpec, program="dialogue", frameworks=FRAMEWORKS)
_team = partial(AgentSpec, program="team", frameworks=FRAMEWORKS)


@hookimpl
def harness_agents() -> list[AgentSpec]:
    return [
        _sql(
            "agent_framework_sql",
            f"{__name__}.agent:AgentFrameworkSQL",
            "Microsoft Agent Framework: a workflow of executors and agents",
        ),
        _sql(
            "agent_framework_sql_idiomatic",
            f"{__name__}.idiomatic:AgentFrameworkSQLIdiomatic",
            "Microsoft Agent Framework: one agent that calls an execute tool itself",
            roles=("write_query",),
            strict=False,
        ),
        _tools(
            "agent_framework_tools",
            f"{__name__}.tools:AgentFrameworkTools",
            "Microsoft Agent Framework: an agent with function tools and middleware",
        ),
        _tools(
            "agent_framework_tools_idiomatic",
            f"{__name__}.tools_idiomatic:AgentFrameworkToolsIdiomatic",
            "Microsoft Agent Framework: function tools and its own loop",
            strict=False,
        ),
        _team(
            "agent_framework_team",
            f"{__name__}.team:AgentFrameworkTeam",
            "Agent Framework: a planner, workers and a critic, each an agent with function tools",
        ),
        _team(
            "agent_framework_team_idiomatic",
            f"{__name__}.team_idiomatic:AgentFrameworkTeamIdiomatic",
            "Microsoft Agent Framework: an agent whose tools are agents",
            strict=False,
        ),
        _dialogue(
            "agent_framework_dialogue",
            f"{__name__}.dialogue:AgentFrameworkDialogue",
            "Microsoft Agent Framework: an agent with a session",
        ),
    ]

"""CrewAI plugin of harness."""

from __future__ import annotations

from functools import partial

from harness.contracts.hookspecs import AgentSpec, hookimpl

HARNESS_API = 1
FRAMEWORKS = ("crewai",)

_sql = partial(AgentSpec, program="self_correcting_sql", frameworks=FRAMEWORKS)
_tools = partial(AgentSpec, program="tool_loop", frameworks=FRAMEWORKS)
_dialogue = partial(AgentSpec, program="dialogue", frameworks=FRAMEWORKS)
_team = partial(AgentSpec, program="team", frameworks=FRAMEWORKS)


@hookimpl
def harness_agents() -> list[AgentSpec]:
    return [
        _sql(
            "crewai_sql",
            f"{__name__}.agent:CrewAISQL",
            "CrewAI: a Flow with routers and direct model calls",
        ),
        _sql(
            "crewai_sql_idiomatic",
            f"{__name__}.idiomatic:CrewAISQLIdiomatic",
            "CrewAI: a crew with an agent and a task for each role",
            strict=False,
        ),
        _tools(
            "crewai_tools",
            f"{__name__}.tools:CrewAITools",
            "CrewAI: a Flow whose router carries out tool calls",
        ),
        _team(
            "crewai_team",
            f"{__name__}.team:CrewAITeam",
            "CrewAI: a planner, workers and a critic, each a Flow",
        ),
        _dialogue(
            "crewai_dialogue",
            f"{__name__}.dialogue:CrewAIDialogue",
            "CrewAI: a Flow a turn, begun with the messages of the last",
        ),
    ]

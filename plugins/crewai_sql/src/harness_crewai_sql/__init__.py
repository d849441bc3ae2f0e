"""CrewAI plugin of harness."""

from __future__ import annotations

from harness.hookspecs import AgentSpec, hookimpl
from harness_dialogues.prompts import ROLES as DIALOGUE_ROLES
from harness_sql.self_correcting.prompts import ROLES
from harness_sql.tool_loop.prompts import ROLES as TOOL_ROLES
from harness_teams.names import ROLES as TEAM_ROLES

HARNESS_API = 1
FRAMEWORKS = ("crewai",)


@hookimpl
def harness_agents() -> list[AgentSpec]:
    return [
        AgentSpec(
            "crewai_sql",
            "harness_crewai_sql.agent:CrewAISQL",
            "CrewAI: a Flow with routers and direct model calls",
            roles=ROLES,
            frameworks=FRAMEWORKS,
            program="self_correcting_sql",
        ),
        AgentSpec(
            "crewai_sql_idiomatic",
            "harness_crewai_sql.idiomatic:CrewAISQLIdiomatic",
            "CrewAI: a crew with an agent and a task for each role",
            roles=ROLES,
            frameworks=FRAMEWORKS,
            strict=False,
            program="self_correcting_sql",
        ),
        AgentSpec(
            "crewai_tools",
            "harness_crewai_sql.tools:CrewAITools",
            "CrewAI: a Flow whose router carries out tool calls",
            roles=TOOL_ROLES,
            frameworks=FRAMEWORKS,
            program="tool_loop",
        ),
        AgentSpec(
            "crewai_team",
            "harness_crewai_sql.team:CrewAITeam",
            "CrewAI: a planner, workers and a critic, each a Flow",
            roles=TEAM_ROLES,
            frameworks=FRAMEWORKS,
            program="team",
        ),
        AgentSpec(
            "crewai_dialogue",
            "harness_crewai_sql.dialogue:CrewAIDialogue",
            "CrewAI: a Flow a turn, begun with the messages of the last",
            roles=DIALOGUE_ROLES,
            frameworks=FRAMEWORKS,
            program="dialogue",
        ),
    ]

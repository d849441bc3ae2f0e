"""AutoGen AgentChat plugin of harness."""

from __future__ import annotations

from harness.hookspecs import AgentSpec, hookimpl
from harness_dialogues.prompts import ROLES as DIALOGUE_ROLES
from harness_sql.self_correcting.prompts import ROLES
from harness_sql.tool_loop.prompts import ROLES as TOOL_ROLES
from harness_teams.names import ROLES as TEAM_ROLES

HARNESS_API = 1
FRAMEWORKS = ("autogen-agentchat", "autogen-core", "autogen-ext")


@hookimpl
def harness_agents() -> list[AgentSpec]:
    return [
        AgentSpec(
            "autogen_sql",
            "harness_autogen_sql.agent:AutoGenSQL",
            "AutoGen AgentChat: agents in a GraphFlow",
            roles=ROLES,
            frameworks=FRAMEWORKS,
            program="self_correcting_sql",
        ),
        AgentSpec(
            "autogen_sql_idiomatic",
            "harness_autogen_sql.idiomatic:AutoGenSQLIdiomatic",
            "AutoGen AgentChat: a group chat that keeps its history",
            roles=("write_query", "check_query"),
            frameworks=FRAMEWORKS,
            strict=False,
            program="self_correcting_sql",
        ),
        AgentSpec(
            "autogen_tools",
            "harness_autogen_sql.tools:AutoGenTools",
            "AutoGen AgentChat: an AssistantAgent with a workbench",
            roles=TOOL_ROLES,
            frameworks=FRAMEWORKS,
            program="tool_loop",
        ),
        AgentSpec(
            "autogen_tools_idiomatic",
            "harness_autogen_sql.tools_idiomatic:AutoGenToolsIdiomatic",
            "AutoGen AgentChat: an AssistantAgent with tools and its own loop",
            roles=TOOL_ROLES,
            frameworks=FRAMEWORKS,
            strict=False,
            program="tool_loop",
        ),
        AgentSpec(
            "autogen_dialogue",
            "harness_autogen_sql.dialogue:AutoGenDialogue",
            "AutoGen AgentChat: an AssistantAgent that keeps its history",
            roles=DIALOGUE_ROLES,
            frameworks=FRAMEWORKS,
            program="dialogue",
        ),
        *_teams(),
    ]


def _teams() -> list[AgentSpec]:
    return [
        AgentSpec(
            "autogen_team",
            "harness_autogen_sql.team:AutoGenTeam",
            "AutoGen: a planner, workers and a critic, each an AssistantAgent",
            roles=TEAM_ROLES,
            frameworks=FRAMEWORKS,
            program="team",
        ),
        AgentSpec(
            "autogen_team_idiomatic",
            "harness_autogen_sql.team_idiomatic:AutoGenTeamIdiomatic",
            "AutoGen AgentChat: an AssistantAgent whose tools are AssistantAgents",
            roles=TEAM_ROLES,
            frameworks=FRAMEWORKS,
            strict=False,
            program="team",
        ),
    ]

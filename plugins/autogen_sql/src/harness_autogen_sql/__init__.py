"""AutoGen AgentChat plugin of harness."""

from __future__ import annotations

from functools import partial

from harness.contracts.hookspecs import AgentSpec, hookimpl

HARNESS_API = 1
FRAMEWORKS = ("autogen-agentchat", "autogen-core", "autogen-ext")

_sql = partial(AgentSpec, program="self_correcting_sql", frameworks=FRAMEWORKS)
_tools = partial(AgentSpec, program="tool_loop", frameworks=FRAMEWORKS)
_dialogue = partial(AgentSpec, program="dialogue", frameworks=FRAMEWORKS)
_team = partial(AgentSpec, program="team", frameworks=FRAMEWORKS)


@hookimpl
def harness_agents() -> list[AgentSpec]:
    return [
        _sql(
            "autogen_sql",
            f"{__name__}.agent:AutoGenSQL",
            "AutoGen AgentChat: agents in a GraphFlow",
        ),
        _sql(
            "autogen_sql_idiomatic",
            f"{__name__}.idiomatic:AutoGenSQLIdiomatic",
            "AutoGen AgentChat: a group chat that keeps its history",
            roles=("write_query", "check_query"),
            strict=False,
        ),
        _tools(
            "autogen_tools",
            f"{__name__}.tools:AutoGenTools",
            "AutoGen AgentChat: an AssistantAgent with a workbench",
        ),
        _tools(
            "autogen_tools_idiomatic",
            f"{__name__}.tools_idiomatic:AutoGenToolsIdiomatic",
            "AutoGen AgentChat: an AssistantAgent with tools and its own loop",
            strict=False,
        ),
        _dialogue(
            "autogen_dialogue",
            f"{__name__}.dialogue:AutoGenDialogue",
            "AutoGen AgentChat: an AssistantAgent that keeps its history",
        ),
        _team(
            "autogen_team",
            f"{__name__}.team:AutoGenTeam",
            "AutoGen: a planner, workers and a critic, each an AssistantAgent",
        ),
        _team(
            "autogen_team_idiomatic",
            f"{__name__}.team_idiomatic:AutoGenTeamIdiomatic",
            "AutoGen AgentChat: an AssistantAgent whose tools are AssistantAgents",
            strict=False,
        ),
    ]

"""LangGraph plugin of harness."""

from __future__ import annotations

from harness.hookspecs import AgentSpec, hookimpl
from harness_dialogues.prompts import ROLES as DIALOGUE_ROLES
from harness_sql.self_correcting.prompts import ROLES
from harness_sql.tool_loop.prompts import ROLES as TOOL_ROLES
from harness_teams.names import ROLES as TEAM_ROLES

HARNESS_API = 1
FRAMEWORKS = ("langgraph", "langchain-core", "langchain-openai")


@hookimpl
def harness_agents() -> list[AgentSpec]:
    return [
        AgentSpec(
            "langgraph_sql",
            "harness_langgraph_sql.agent:LangGraphSQL",
            "LangGraph: a StateGraph with conditional edges",
            roles=ROLES,
            frameworks=FRAMEWORKS,
            program="self_correcting_sql",
        ),
        AgentSpec(
            "langgraph_tools",
            "harness_langgraph_sql.tools:LangGraphTools",
            "LangGraph: a StateGraph with a tools node",
            roles=TOOL_ROLES,
            frameworks=FRAMEWORKS,
            program="tool_loop",
        ),
        AgentSpec(
            "langgraph_tools_idiomatic",
            "harness_langgraph_sql.tools_idiomatic:LangGraphToolsIdiomatic",
            "LangGraph: bound tools and the prebuilt ToolNode",
            roles=TOOL_ROLES,
            frameworks=FRAMEWORKS,
            strict=False,
            program="tool_loop",
        ),
        AgentSpec(
            "langgraph_team",
            "harness_langgraph_sql.team:LangGraphTeam",
            "LangGraph: a planner, workers and a critic, each a StateGraph with a tools node",
            roles=TEAM_ROLES,
            frameworks=FRAMEWORKS,
            program="team",
        ),
        AgentSpec(
            "langgraph_team_idiomatic",
            "harness_langgraph_sql.team_idiomatic:LangGraphTeamIdiomatic",
            "LangGraph: a supervisor that hands over by Command(goto=...)",
            roles=TEAM_ROLES,
            frameworks=FRAMEWORKS,
            strict=False,
            program="team",
        ),
        AgentSpec(
            "langgraph_dialogue",
            "harness_langgraph_sql.dialogue:LangGraphDialogue",
            "LangGraph: the graph of tools, its state carried from turn to turn",
            roles=DIALOGUE_ROLES,
            frameworks=FRAMEWORKS,
            program="dialogue",
        ),
    ]

"""LangGraph plugin of harness."""

from __future__ import annotations

from functools import partial

from harness.hookspecs import AgentSpec, hookimpl

HARNESS_API = 1
FRAMEWORKS = ("langgraph", "langchain-core", "langchain-openai")

_sql = partial(AgentSpec, program="self_correcting_sql", frameworks=FRAMEWORKS)
_tools = partial(AgentSpec, program="tool_loop", frameworks=FRAMEWORKS)
_dialogue = partial(AgentSpec, program="dialogue", frameworks=FRAMEWORKS)
_team = partial(AgentSpec, program="team", frameworks=FRAMEWORKS)


@hookimpl
def harness_agents() -> list[AgentSpec]:
    return [
        _sql(
            "langgraph_sql",
            "harness_langgraph_sql.agent:LangGraphSQL",
            "LangGraph: a StateGraph with conditional edges",
        ),
        _tools(
            "langgraph_tools", "harness_langgraph_sql.tools:LangGraphTools", "LangGraph: a StateGraph with a tools node"
        ),
        _tools(
            "langgraph_tools_idiomatic",
            "harness_langgraph_sql.tools_idiomatic:LangGraphToolsIdiomatic",
            "LangGraph: bound tools and the prebuilt ToolNode",
            strict=False,
        ),
        _team(
            "langgraph_team",
            "harness_langgraph_sql.team:LangGraphTeam",
            "LangGraph: a planner, workers and a critic, each a StateGraph with a tools node",
        ),
        _team(
            "langgraph_team_idiomatic",
            "harness_langgraph_sql.team_idiomatic:LangGraphTeamIdiomatic",
            "LangGraph: a supervisor that hands over by Command(goto=...)",
            strict=False,
        ),
        _dialogue(
            "langgraph_dialogue",
            "harness_langgraph_sql.dialogue:LangGraphDialogue",
            "LangGraph: the graph of tools, its state carried from turn to turn",
        ),
    ]

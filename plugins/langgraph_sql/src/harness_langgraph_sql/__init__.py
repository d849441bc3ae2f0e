"""LangGraph plugin of harness."""

from __future__ import annotations

from functools import partial

from harness.contracts.hookspecs import AgentSpec, hookimpl

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
            f"{__name__}.agent:LangGraphSQL",
            "LangGraph: a StateGraph with conditional edges",
        ),
        _sql(
            "langgraph_sql_idiomatic",
            f"{__name__}.idiomatic:LangGraphSQLIdiomatic",
            "LangGraph: a model with an execute tool and the prebuilt ToolNode",
            roles=("write_query",),
            strict=False,
        ),
        _tools(
            "langgraph_tools",
            f"{__name__}.tools:LangGraphTools",
            "LangGraph: a StateGraph with a tools node",
        ),
        _tools(
            "langgraph_tools_idiomatic",
            f"{__name__}.tools_idiomatic:LangGraphToolsIdiomatic",
            "LangGraph: bound tools and the prebuilt ToolNode",
            strict=False,
        ),
        _team(
            "langgraph_team",
            f"{__name__}.team:LangGraphTeam",
            "LangGraph: a planner, workers and a critic, each a StateGraph with a tools node",
        ),
        _team(
            "langgraph_team_idiomatic",
            f"{__name__}.team_idiomatic:LangGraphTeamIdiomatic",
            "LangGraph: a supervisor that hands over by Command(goto=...)",
            strict=False,
        ),
        _dialogue(
            "langgraph_dialogue",
            f"{__name__}.dialogue:LangGraphDialogue",
            "LangGraph: the graph of tools, its state carried from turn to turn",
        ),
    ]

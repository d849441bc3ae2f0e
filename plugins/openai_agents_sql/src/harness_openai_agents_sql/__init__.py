"""OpenAI Agents SDK plugin of harness."""

from __future__ import annotations

from functools import partial

from harness.contracts.hookspecs import AgentSpec, hookimpl

HARNESS_API = 1
FRAMEWORKS = ("openai-agents", "openai")

_sql = partial(AgentSpec, program="self_correcting_sql", frameworks=FRAMEWORKS)
_tools = partial(AgentSpec, program="tool_loop", frameworks=FRAMEWORKS)
_dialogue = partial(AgentSpec, program="dialogue", frameworks=FRAMEWORKS)
_team = partial(AgentSpec, program="team", frameworks=FRAMEWORKS)


@hookimpl
def harness_agents() -> list[AgentSpec]:
    return [
        _sql(
            "openai_agents_sql",
            f"{__name__}.agent:OpenAIAgentsSQL",
            "OpenAI Agents SDK: three agents and a runner on Chat Completions",
        ),
        _sql(
            "openai_agents_sql_idiomatic",
            f"{__name__}.idiomatic:OpenAIAgentsSQLIdiomatic",
            "OpenAI Agents SDK: one agent that calls an execute tool itself",
            roles=("write_query",),
            strict=False,
        ),
        _tools(
            "openai_agents_tools",
            f"{__name__}.tools:OpenAIAgentsTools",
            "OpenAI Agents SDK: an agent with function tools and a runner",
        ),
        _tools(
            "openai_agents_tools_idiomatic",
            f"{__name__}.tools_idiomatic:OpenAIAgentsToolsIdiomatic",
            "OpenAI Agents SDK: strict function tools and the runner as it is",
            strict=False,
        ),
        _dialogue(
            "openai_agents_dialogue",
            f"{__name__}.dialogue:OpenAIAgentsDialogue",
            "OpenAI Agents SDK: a run a turn, begun with the items of the last",
        ),
        _team(
            "openai_agents_team",
            f"{__name__}.team:OpenAIAgentsTeam",
            "OpenAI Agents SDK: a planner, workers and a critic, each run by its Runner",
        ),
        _team(
            "openai_agents_team_idiomatic",
            f"{__name__}.team_idiomatic:OpenAIAgentsTeamIdiomatic",
            "OpenAI Agents SDK: a manager whose tools are agents",
            strict=False,
        ),
    ]

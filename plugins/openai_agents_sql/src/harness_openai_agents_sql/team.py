"""The team with this framework's tool-calling agents as members."""

from __future__ import annotations

from harness_openai_agents_sql.tools import OpenAIAgentsTools
from harness_teams.team import Team


class OpenAIAgentsTeam(Team):
    """A planner hands tasks to workers; a critic reads the answer."""

    loop = OpenAIAgentsTools

"""The team with this framework's tool-calling agents as members."""

from __future__ import annotations

from harness_crewai_sql.tools import CrewAITools
from harness_teams.team import Team


class CrewAITeam(Team):
    """A planner hands tasks to workers; a critic reads the answer."""

    loop = CrewAITools

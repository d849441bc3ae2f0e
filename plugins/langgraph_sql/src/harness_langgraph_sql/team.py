"""The team with this framework's tool-calling agents as members."""

from __future__ import annotations

from harness_langgraph_sql.tools import LangGraphTools
from harness_teams.team import Team


class LangGraphTeam(Team):
    """A planner hands tasks to workers; a critic reads the answer."""

    loop = LangGraphTools

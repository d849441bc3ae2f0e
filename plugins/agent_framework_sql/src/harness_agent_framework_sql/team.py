"""The team with this framework's tool-calling agents as members."""

from __future__ import annotations

from harness_agent_framework_sql.tools import AgentFrameworkTools
from harness_teams.team import Team


class AgentFrameworkTeam(Team):
    """A planner hands tasks to workers; a critic reads the answer."""

    loop = AgentFrameworkTools

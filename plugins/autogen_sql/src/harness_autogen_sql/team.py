"""The team with this framework's tool-calling agents as members."""

from __future__ import annotations

from harness_autogen_sql.tools import AutoGenTools
from harness_teams.team import Team


class AutoGenTeam(Team):
    """A planner hands tasks to workers; a critic reads the answer."""

    loop = AutoGenTools

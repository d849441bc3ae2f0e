"""The team whose members are tool-calling agents of this framework."""

from __future__ import annotations

from harness_autogen_sql.tools import AutoGenTools
from harness_teams.team import Team


class AutoGenTeam(Team):
    """A planner hands tasks to workers; a critic reads the answer."""

    loop = AutoGenTools

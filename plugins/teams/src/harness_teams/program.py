"""The program `team`: a planner, workers with tools of their own, and a critic."""

from __future__ import annotations

from collections.abc import Sequence

from harness import Attempt, Played, Tool, Turn
from harness_teams.names import CRITIC, PASSES, PLANNER, ROLES
from harness_teams.prompts import TeamPrompts


class TeamProgram(Played):
    """plan -> (hand over -> work ...) -> answer -> check -> possibly a second pass."""

    reference = "reference_team"
    environment = ""
    calls_tools = True
    roles = ROLES
    checkers = (CRITIC,)
    revisers: tuple[str, ...] = ()
    prompts = TeamPrompts()
    prompts_hash = prompts.hash
    scenes = "harness_teams.scenarios"

    def prompts_for(self, tools: Sequence[Tool]) -> TeamPrompts:
        return TeamPrompts(tools)

    def most_calls(self, max_turns: int) -> int:
        """Count planner and critic in each pass, and one worker for each handoff."""
        return PASSES * (max_turns + 2 + max_turns * (max_turns + 1))

    def turns(self, attempt: Attempt) -> list[Turn]:
        """Return the turn of every call: its pass's answer, and for a critic's call its verdict."""
        calls = attempt.transitions
        passes: list[list[int]] = [[]]
        for at, call in enumerate(calls):
            passes[-1].append(at)
            if call.role == CRITIC and at + 1 < len(calls):
                passes.append([])
        found: list[Turn] = []
        for one in passes:
            said = [calls[at].response_text.strip() for at in one if calls[at].role == PLANNER]
            answer = said[-1] if said else None
            for at in one:
                call = calls[at]
                approved = (
                    self.prompts.approves(call.response_text) if call.role == CRITIC else None
                )
                found.append(Turn(answer, approved))
        return found

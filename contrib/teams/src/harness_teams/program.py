"""The program `team`: a planner, workers with tools of their own, and a critic."""

from __future__ import annotations

from collections.abc import Sequence

from harness import Attempt, Played, Tool, Transition, Turn
from harness.util.reasoning import without_reasoning
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

    def read_answer(self, text: str) -> str:
        return without_reasoning(text).strip()

    def turns(self, attempt: Attempt) -> list[Turn]:
        """Return the turn of every call: its pass's answer, and for a critic's call its verdict."""
        calls = attempt.transitions
        # A critic's call ends a pass.
        passes: list[list[Transition]] = [[]]
        for index, call in enumerate(calls):
            passes[-1].append(call)
            if call.role == CRITIC and index + 1 < len(calls):
                passes.append([])
        turns: list[Turn] = []
        for members in passes:
            replies = [call.response_text for call in members if call.role == PLANNER]
            answer = self.read_answer(replies[-1]) if replies else None
            for call in members:
                approved = None
                if call.role == CRITIC:
                    approved = self.prompts.approves(call.response_text)
                turns.append(Turn(answer, approved))
        return turns

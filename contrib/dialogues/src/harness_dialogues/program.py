"""The program `dialogue`: talk to a user, with tools, until the user ends the conversation."""

from __future__ import annotations

from harness.contracts.programs import Played, Turn
from harness.records import Attempt
from harness_dialogues.prompts import PROMPTS
from harness_dialogues.roles import ROLES, USER


class Dialogue(Played):
    """user -> agent (-> tools -> agent ...) -> user ..., with the tools of any environment."""

    reference = "reference_dialogue"
    environment = ""
    calls_tools = True
    roles = ROLES
    checkers = (USER,)
    """The user's messages are no answers; the user is trained only if a configuration names it."""
    revisers: tuple[str, ...] = ()
    prompts = PROMPTS
    prompts_hash = PROMPTS.hash
    scenes = "harness_dialogues.scenarios"

    def most_calls(self, max_turns: int) -> int:
        return max_turns * (max_turns + 2)

    def turns(self, attempt: Attempt) -> tuple[Turn, ...]:
        return ()

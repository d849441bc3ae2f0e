"""The program `tool_loop`: call the environment's tools until the answer is given in words."""

from __future__ import annotations

from harness.programs import Played, Turn
from harness.records import Attempt
from harness_sql.tool_loop.prompts import PROMPTS, ROLES


class ToolLoop(Played):
    """ask -> (call tools -> ask ...) -> answer, with the tools of any environment."""

    reference = "reference_tools"
    environment = ""
    calls_tools = True
    roles = ROLES
    checkers: tuple[str, ...] = ()
    revisers: tuple[str, ...] = ()
    prompts = PROMPTS
    prompts_hash = PROMPTS.hash
    scenes = "harness_sql.tool_loop.scenarios"

    def turns(self, attempt: Attempt) -> tuple[Turn, ...]:
        return ()

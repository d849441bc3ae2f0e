"""The program `tool_loop`: call the environment's tools until the answer is given in words."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from harness.contracts.environments import Tool
from harness.contracts.programs import Played, Turn
from harness.records import Attempt
from harness.util.reasoning import without_reasoning
from harness_sql.tool_loop.prompts import PROMPTS, READING, ROLES, WITHOUT_TOOLS, Prompts


class ToolLoop(Played):
    """ask -> (call tools -> ask ...) -> answer, with the tools of any environment."""

    reference = "reference_tools"
    environment = ""
    calls_tools = True
    roles = ROLES
    checkers: tuple[str, ...] = ()
    revisers: tuple[str, ...] = ()
    prompts = PROMPTS
    prompts_hash = hashlib.sha256(
        f"{PROMPTS.hash} {WITHOUT_TOOLS.hash} {READING}".encode()
    ).hexdigest()[:16]
    scenes = "harness_sql.tool_loop.scenarios"

    def prompts_for(self, tools: Sequence[Tool]) -> Prompts:
        return PROMPTS if tools else WITHOUT_TOOLS

    def read_answer(self, text: str) -> str:
        return without_reasoning(text).strip()

    def turns(self, attempt: Attempt) -> tuple[Turn, ...]:
        return ()

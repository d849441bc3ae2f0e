"""The program `tool_loop`: call the environment's tools until the answer is given in words."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence

from harness.contracts.environments import Tool
from harness.contracts.programs import Played, Turn
from harness.records import Attempt
from harness.util.reasoning import without_reasoning
from harness_sql.tool_loop.prompts import (
    FORM,
    PROMPTS,
    READING,
    ROLES,
    WITHOUT_TOOLS,
    Prompts,
)

# A query may hold single backticks around names, so the text ends at the whole fence only.
_ONE_QUERY = re.compile(
    r"(?P<fence>`{3,})(?:sql|sqlite)\s(?P<query>(?:(?!(?P=fence)).)*)(?P=fence)",
    re.IGNORECASE | re.DOTALL,
)


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
        f"{PROMPTS.hash} {WITHOUT_TOOLS.hash} {FORM} {READING}".encode()
    ).hexdigest()[:16]
    scenes = "harness_sql.tool_loop.scenarios"

    def prompts_for(self, tools: Sequence[Tool]) -> Prompts:
        return PROMPTS if tools else WITHOUT_TOOLS

    def inputs(self, context: Mapping[str, str], answer_form: str) -> Mapping[str, str]:
        # Without it, an agent would answer in words where the reward executes the answer.
        return {**context, FORM: answer_form} if answer_form else context

    def read_answer(self, text: str) -> str:
        answer = without_reasoning(text).strip()
        fenced = _ONE_QUERY.fullmatch(answer)
        return fenced["query"].strip() if fenced else answer

    def turns(self, attempt: Attempt) -> tuple[Turn, ...]:
        return ()

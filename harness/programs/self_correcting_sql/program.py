"""The program `self_correcting_sql`: write a query, look at what it gives, check it, rewrite it."""

from __future__ import annotations

from harness.programs import Played
from harness.programs.self_correcting_sql.prompts import PROMPTS, ROLES
from harness.records import Attempt


class SelfCorrectingSQL(Played):
    """write -> execute -> check -> (end | rewrite -> execute -> check ...), the last query unchecked."""

    reference = "reference_sql"
    environment = "sql"
    calls_tools = False
    roles = ROLES
    checkers = ("check_query",)
    revisers = ("rewrite_query",)
    prompts = PROMPTS
    prompts_hash = PROMPTS.hash
    scenes = "harness.programs.self_correcting_sql.scenarios"

    def first_answer(self, attempt: Attempt) -> str | None:
        return str(attempt.tool_calls[0].arguments["sql"]) if attempt.tool_calls else attempt.answer

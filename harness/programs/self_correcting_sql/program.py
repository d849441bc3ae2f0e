"""The program `self_correcting_sql`: write a query, look at what it gives, check it, rewrite it."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any

from harness.programs import Scenario
from harness.programs.self_correcting_sql.prompts import PROMPTS, ROLES
from harness.records import Attempt, Problem, Task


class SelfCorrectingSQL:
    """write -> execute -> check -> (end | rewrite -> execute -> check ...), the last query unchecked."""

    reference = "reference_sql"
    environment = "sql"
    roles = ROLES
    checkers = ("check_query",)
    revisers = ("rewrite_query",)
    prompts = PROMPTS
    prompts_hash = PROMPTS.hash

    @cached_property
    def scenarios(self) -> tuple[Scenario, ...]:
        from harness.programs.self_correcting_sql.scenarios import SCENARIOS

        return SCENARIOS

    @cached_property
    def scenarios_hash(self) -> str:
        from harness.programs.self_correcting_sql.scenarios import scenario_set_hash

        return scenario_set_hash()

    def first_answer(self, attempt: Attempt) -> str | None:
        return str(attempt.tool_calls[0].arguments["sql"]) if attempt.tool_calls else attempt.answer

    def stage(self, scenario: Scenario, folder: Path) -> tuple[Task, Problem]:
        from harness.programs.self_correcting_sql.scenarios import stage

        return stage(scenario, folder)

    def script(self, scenario: Scenario) -> Callable[[Any], Any]:
        from harness.programs.self_correcting_sql.scenarios import Script

        return Script(scenario)

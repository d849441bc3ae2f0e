"""The program `tool_loop`: call the environment's tools until the answer is given in words."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any

from harness.programs import Scenario
from harness.programs.tool_loop.prompts import PROMPTS, ROLES
from harness.records import Attempt, Problem, Task


class ToolLoop:
    """ask -> (call tools -> ask ...) -> answer, with the tools of any environment."""

    reference = "reference_tools"
    environment = ""
    roles = ROLES
    checkers: tuple[str, ...] = ()
    revisers: tuple[str, ...] = ()
    prompts = PROMPTS
    prompts_hash = PROMPTS.hash

    @cached_property
    def scenarios(self) -> tuple[Scenario, ...]:
        from harness.programs.tool_loop.scenarios import SCENARIOS

        return SCENARIOS

    @cached_property
    def scenarios_hash(self) -> str:
        from harness.programs.tool_loop.scenarios import scenarios_hash

        return scenarios_hash()

    def first_answer(self, attempt: Attempt) -> str | None:
        return None

    def stage(self, scenario: Scenario, folder: Path) -> tuple[Task, Problem]:
        from harness.programs.tool_loop.scenarios import stage

        return stage(scenario, folder)

    def script(self, scenario: Scenario) -> Callable[[Any], Any]:
        from harness.programs.tool_loop.scenarios import script

        return script(scenario)

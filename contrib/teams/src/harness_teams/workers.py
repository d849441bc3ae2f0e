"""Handoffs of a planner in every framework: worker, tools, concurrency and report."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import partial

from harness import Problem, Toolbox
from harness.records import JSON
from harness_teams.prompts import Handoff, Report, TeamPrompts

AT_ONCE = 4
"""Most concurrent workers; the planner gets an error for more handoffs."""
TOO_MANY = f"No more than {AT_ONCE} tasks can be under way. Hand this one over again."
Run = Callable[[str, Problem, Toolbox], Awaitable[str]]
"""Run a worker: from its role, its task and its toolbox to its report."""


class Workers:
    """The planner's tools, and the workers' reports.

    Args:
        task_id: Id of the problem.
        toolbox: The team's toolbox.

    Attributes:
        toolbox: The planner's part, with tools that hand over.
        reports: In the order of the calls.
        raised: The first exception of a worker; some frameworks would show it to the planner and
            continue.
    """

    def __init__(self, task_id: str, toolbox: Toolbox, run: Run) -> None:
        self._task_id, self._whole, self._run = task_id, toolbox, run
        self._under_way = 0
        self.reports: list[Report] = []
        self.raised: Exception | None = None
        prompts: TeamPrompts = toolbox.prompts
        handoffs = {}
        for handoff in prompts.handoffs:
            handoffs[handoff.tool.name] = partial(self._hand_over, handoff)
        self.toolbox = toolbox.part([handoff.tool for handoff in prompts.handoffs], handoffs)

    async def _hand_over(self, handoff: Handoff, arguments: Mapping[str, JSON]) -> str:
        if self._under_way == AT_ONCE:
            return TOO_MANY
        # Nothing is awaited up to here, so that branches and reports follow the order of the calls.
        report = Report(handoff.worker, str(arguments["task"]))
        self.reports.append(report)
        part = self._whole.part(handoff.tools, at_once=True)
        self._under_way += 1
        try:
            report.text = await self._run(handoff.worker, Problem(self._task_id, report.task), part)
        except Exception as error:
            self.raised = self.raised or error
            raise
        finally:
            self._under_way -= 1
        return report.text

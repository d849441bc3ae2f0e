"""The team, whatever framework runs its members: who is asked what, and when it ends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from harness import LLM, Agent, Problem, Tool, Toolbox
from harness.records import JSON
from harness_sql.tool_loop.prompts import Prompts
from harness_sql.tool_loop.reference import ReferenceTools
from harness_teams.names import CRITIC, PASSES, PLANNER, ROLES
from harness_teams.prompts import Handoff, Report, TeamPrompts

if TYPE_CHECKING:
    import httpx

AT_ONCE = 4
"""Workers under way; whoever hands over more is told so."""
TOO_MANY = f"No more than {AT_ONCE} tasks can be under way. Hand this one over again."


@dataclass(frozen=True, slots=True)
class Seat:
    """The toolbox of one member, whose loop knows no name for its role."""

    toolbox: Toolbox
    role: str
    prompts: Prompts
    max_turns: int

    @property
    def tools(self) -> Sequence[Tool]:
        """Those of its part."""
        return self.toolbox.tools

    @property
    def http_client(self) -> httpx.AsyncClient:
        """The runner's."""
        return self.toolbox.http_client

    def llm(self, _role: str) -> LLM:
        """The member's own, by whatever name its loop asks."""
        return self.toolbox.llm(self.role)

    def __getattr__(self, name: str) -> Any:  # calls of tools
        return getattr(self.toolbox, name)


class Team:
    """A planner hands tasks to workers until it answers; a critic reads the answer, and the planner may try again.

    Each member is an agent of the framework that calls tools; handing over is one. `max_turns` bounds how often the
    planner hands over, in each pass, and how often a worker calls its tools.
    """

    roles = ROLES
    loop: ClassVar[type[Agent]]
    """The framework's agent of the program `tool_loop`."""

    def __init__(self) -> None:
        self._member = type(self).loop()

    async def solve(self, problem: Problem, toolbox: Toolbox) -> str:
        """Answer one problem; an error of any member's endpoint ends it."""
        prompts: TeamPrompts = toolbox.prompts
        asked, answer = problem, ""
        for left in reversed(range(PASSES)):
            work = _Work(self._member, problem.task_id, toolbox)
            answer = await self._member.solve(asked, work.planner())
            if not left:
                break
            review = replace(problem, context=prompts.review(work.reports, answer))
            said = await self._member.solve(review, Seat(toolbox.part(()), CRITIC, prompts.critic, 0))
            if prompts.approves(said):
                break
            asked = replace(problem, context=prompts.again(problem.context, work.reports, answer, said))
        return answer


class _Work:
    """What is handed over in one pass."""

    def __init__(self, member: Agent, task_id: str, toolbox: Toolbox) -> None:
        self._member, self._task_id, self._toolbox = member, task_id, toolbox
        self._prompts: TeamPrompts = toolbox.prompts
        self._under_way = 0
        self.reports: list[Report] = []

    def planner(self) -> Seat:
        """The planner's seat."""
        handoffs = self._prompts.handoffs
        own = {one.tool.name: partial(self._hand_over, one) for one in handoffs}
        part = self._toolbox.part([one.tool for one in handoffs], own)
        return Seat(part, PLANNER, self._prompts.planner, self._toolbox.max_turns)

    async def _hand_over(self, handoff: Handoff, given: Mapping[str, JSON]) -> str:
        if self._under_way == AT_ONCE:
            return TOO_MANY
        # Up to here nothing is waited for: branches and reports are in the order of the calls.
        report = Report(handoff.worker, str(given["task"]))
        self.reports.append(report)
        part = self._toolbox.part(handoff.tools, at_once=True)
        self._under_way += 1
        try:
            seat = Seat(part, handoff.worker, self._prompts.worker, self._toolbox.max_turns)
            report.text = await self._member.solve(Problem(self._task_id, report.task), seat)
        finally:
            self._under_way -= 1
        return report.text


class ReferenceTeam(Team):
    """The team in plain Python."""

    loop = ReferenceTools

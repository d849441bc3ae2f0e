"""The control flow of a team, the same in every framework: calls, handoffs and the end."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

from harness import LLM, Agent, Problem, Toolbox
from harness_sql.tool_loop.prompts import Prompts
from harness_sql.tool_loop.reference import ReferenceTools
from harness_teams.names import CRITIC, PASSES, PLANNER, ROLES
from harness_teams.prompts import TeamPrompts
from harness_teams.workers import Workers


@dataclass(frozen=True, slots=True)
class Seat:
    """The toolbox of one member with a loop that knows no role names."""

    toolbox: Toolbox
    role: str
    prompts: Prompts
    max_turns: int

    def llm(self, _role: str) -> LLM:
        """Return the member's own endpoint for any role name."""
        return self.toolbox.llm(self.role)

    def __getattr__(self, name: str) -> Any:  # tools and their calls
        return getattr(self.toolbox, name)


class Team:
    """A planner hands tasks to workers until it answers; a critic reads the answer.

    The planner may retry.

    Each member is the framework's agent for calling tools, and handing over is such a tool.
    `max_turns` bounds the planner's handoffs in each pass, and each worker's tool calls.
    """

    roles = ROLES
    loop: ClassVar[type[Agent]]
    """The framework's agent of the program `tool_loop`."""

    def __init__(self) -> None:
        self._member = type(self).loop()

    async def solve(self, problem: Problem, toolbox: Toolbox) -> str:
        """Answer one problem; an endpoint error of any member ends it."""
        prompts: TeamPrompts = toolbox.prompts
        request, answer = problem, ""
        for passes_left in reversed(range(PASSES)):
            work = Workers(problem.task_id, toolbox, self._work)
            planner = Seat(work.toolbox, PLANNER, prompts.planner, toolbox.max_turns)
            answer = await self._member.solve(request, planner)
            if not passes_left:
                break
            review = replace(problem, context=prompts.review(work.reports, answer))
            verdict = await self._member.solve(
                review, Seat(toolbox.part(()), CRITIC, prompts.critic, 0)
            )
            if prompts.approves(verdict):
                break
            request = replace(
                problem, context=prompts.again(problem.context, work.reports, answer, verdict)
            )
        return answer

    async def _work(self, role: str, task: Problem, part: Toolbox) -> str:
        return await self._member.solve(task, Seat(part, role, part.prompts.worker, part.max_turns))


class ReferenceTeam(Team):
    """The team in plain Python."""

    loop = ReferenceTools

"""The team as Microsoft Agent Framework means it without its orchestrations: an agent whose tools run other agents.

The handoff orchestration is a distribution of its own (`agent-framework-orchestrations`), which is not installed.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import cast

from agent_framework import Agent, ChatContext, ChatMiddleware, ChatOptions, FunctionTool

from harness.records import JSON, Problem
from harness.toolbox import Toolbox
from harness_agent_framework_sql.client import chat_client
from harness_agent_framework_sql.tools_idiomatic import as_function
from harness_teams.names import CRITIC, PLANNER, ROLES
from harness_teams.prompts import Handoff, Report, TeamPrompts
from harness_teams.team import AT_ONCE, TOO_MANY


def member(
    role: str, system: str, toolbox: Toolbox, tools: Sequence[FunctionTool] = (), *more: ChatMiddleware
) -> Agent:
    """An agent of the team."""
    return Agent(
        chat_client(role, toolbox, {"max_iterations": max(1, toolbox.max_turns)}),
        system,
        name=role,
        tools=list(tools),
        default_options=cast("ChatOptions[None]", {**toolbox.llm(role).sampling}),
        middleware=list(more),
    )


@dataclass
class Workers(ChatMiddleware):
    """The planner's tools, and what the workers reported."""

    task_id: str
    toolbox: Toolbox
    reports: list[Report] = field(default_factory=list)
    under_way: int = 0
    raised: Exception | None = None
    """By a worker: the framework would show it to the planner and go on."""

    def tools(self) -> list[FunctionTool]:
        """A tool for each worker."""
        handoffs = self.toolbox.prompts.handoffs
        own = {one.tool.name: partial(self.work, one) for one in handoffs}
        part = self.toolbox.part([one.tool for one in handoffs], own)
        return [as_function(tool, part) for tool in part.tools]

    async def process(self, context: ChatContext, call_next: Callable[[], Awaitable[None]]) -> None:
        """The planner is not asked again once a worker raised."""
        if self.raised is not None:
            raise self.raised
        await call_next()

    async def work(self, handoff: Handoff, given: Mapping[str, JSON]) -> str:
        """A run of a worker."""
        if self.under_way == AT_ONCE:
            return TOO_MANY
        report = Report(handoff.worker, str(given["task"]))
        self.reports.append(report)
        part = self.toolbox.part(handoff.tools, at_once=True)
        texts = self.toolbox.prompts.worker
        worker = member(handoff.worker, texts.system, part, [as_function(tool, part) for tool in handoff.tools])
        self.under_way += 1
        try:
            report.text = (await worker.run(texts.user(Problem(self.task_id, report.task)))).text.strip()
        except Exception as error:
            self.raised = self.raised or error
            raise
        finally:
            self.under_way -= 1
        return report.text


class AgentFrameworkTeamIdiomatic:
    """The planner's session goes on with the critic's words."""

    roles = ROLES

    async def solve(self, problem: Problem, toolbox: Toolbox) -> str:
        prompts: TeamPrompts = toolbox.prompts
        workers = Workers(problem.task_id, toolbox)
        planner = member(PLANNER, prompts.planner.system, toolbox, workers.tools(), workers)
        session = planner.create_session()
        answer = (await planner.run(prompts.planner.user(problem), session=session)).messages[-1].text.strip()
        review = replace(problem, context=prompts.review(workers.reports, answer))
        said = (await member(CRITIC, prompts.critic.system, toolbox).run(prompts.critic.user(review))).text
        if prompts.approves(said):
            return answer
        return (await planner.run(said, session=session)).messages[-1].text.strip()

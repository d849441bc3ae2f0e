"""The team as AutoGen's documentation first shows one: an AssistantAgent whose tools run other AssistantAgents.

A `Swarm` has one speaker at a time, whose handoffs carry no task, and one conversation that all see: not this program.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from autogen_core import CancellationToken
from autogen_core.tools import StaticWorkbench, ToolResult

from harness.records import JSON, Problem
from harness.toolbox import Toolbox
from harness_autogen_sql.running import ToolAgent, chat_client, run_agent
from harness_autogen_sql.tools_idiomatic import ToolboxTool
from harness_teams.names import CRITIC, PLANNER, ROLES
from harness_teams.prompts import Handoff, Report, TeamPrompts
from harness_teams.team import AT_ONCE, TOO_MANY


class Bench(StaticWorkbench):
    """Tools whose errors end the run: AutoGen's own bench shows them to the model and goes on."""

    def __init__(self, tools: Sequence[ToolboxTool]) -> None:
        super().__init__(list(tools))
        self.raised: Exception | None = None
        """By a worker."""

    async def call_tool(
        self,
        name: str,
        arguments: Mapping[str, object] | None = None,
        cancellation_token: CancellationToken | None = None,
        call_id: str | None = None,
    ) -> ToolResult:
        """What the tool gave."""
        result = await super().call_tool(name, arguments, cancellation_token, call_id)
        if self.raised is not None:
            raise self.raised
        return result


def member(role: str, system: str, toolbox: Toolbox, bench: StaticWorkbench) -> ToolAgent:
    """An agent of the team."""
    return ToolAgent(
        role,
        chat_client(role, toolbox),
        workbench=bench,
        system_message=system,
        max_tool_iterations=max(1, toolbox.max_turns),
    )


@dataclass
class Workers:
    """The planner's tools, and what the workers reported."""

    task_id: str
    toolbox: Toolbox
    reports: list[Report] = field(default_factory=list)
    under_way: int = 0

    def __post_init__(self) -> None:
        handoffs = self.toolbox.prompts.handoffs
        own = {one.tool.name: partial(self.work, one) for one in handoffs}
        part = self.toolbox.part([one.tool for one in handoffs], own)
        self.bench = Bench([ToolboxTool(tool, part) for tool in part.tools])

    async def work(self, handoff: Handoff, given: Mapping[str, JSON]) -> str:
        """A run of a worker; what it raises ends the attempt."""
        if self.under_way == AT_ONCE:
            return TOO_MANY
        report = Report(handoff.worker, str(given["task"]))
        self.reports.append(report)
        part = self.toolbox.part(handoff.tools, at_once=True)
        texts = self.toolbox.prompts.worker
        bench = Bench([ToolboxTool(tool, part) for tool in handoff.tools])
        worker = member(handoff.worker, texts.system, part, bench)
        self.under_way += 1
        try:
            report.text = await run_agent(texts.user(Problem(self.task_id, report.task)), worker)
        except Exception as error:
            self.bench.raised = self.bench.raised or error
            raise
        finally:
            self.under_way -= 1
        return report.text


class AutoGenTeamIdiomatic:
    """The planner keeps its history, and goes on with the critic's words."""

    roles = ROLES

    async def solve(self, problem: Problem, toolbox: Toolbox) -> str:
        prompts: TeamPrompts = toolbox.prompts
        workers = Workers(problem.task_id, toolbox)
        planner = member(PLANNER, prompts.planner.system, toolbox, workers.bench)
        answer = await run_agent(prompts.planner.user(problem), planner)
        review = replace(problem, context=prompts.review(workers.reports, answer))
        critic = member(CRITIC, prompts.critic.system, toolbox, Bench([]))
        said = await run_agent(prompts.critic.user(review), critic)
        return answer if prompts.approves(said) else await run_agent(said, planner)

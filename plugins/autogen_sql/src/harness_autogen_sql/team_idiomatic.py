"""The team in AutoGen's first documented form: an AssistantAgent with other agents as tools.

A `Swarm` does not fit this program: it has one speaker at a time, handoffs without a task, and one
conversation that all members see.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from autogen_core import CancellationToken
from autogen_core.tools import StaticWorkbench, ToolResult

from harness.contracts.toolbox import Toolbox
from harness.records import Problem
from harness_autogen_sql.running import ToolAgent, chat_client, run_agent
from harness_autogen_sql.tools_idiomatic import ToolboxTool
from harness_teams.names import CRITIC, PLANNER, ROLES
from harness_teams.prompts import TeamPrompts
from harness_teams.workers import Workers


def functions(toolbox: Toolbox) -> list[ToolboxTool]:
    """Return the toolbox's tools."""
    return [ToolboxTool(tool, toolbox) for tool in toolbox.tools]


class Bench(StaticWorkbench):
    """The planner's tools. A worker's exception ends the run; AutoGen's bench continues."""

    def __init__(self, workers: Workers) -> None:
        super().__init__([*functions(workers.toolbox)])
        self._workers = workers

    async def call_tool(
        self,
        name: str,
        arguments: Mapping[str, object] | None = None,
        cancellation_token: CancellationToken | None = None,
        call_id: str | None = None,
    ) -> ToolResult:
        """Return the tool's result."""
        result = await super().call_tool(name, arguments, cancellation_token, call_id)
        if self._workers.raised is not None:
            raise self._workers.raised
        return result


def member(role: str, system: str, toolbox: Toolbox, bench: StaticWorkbench) -> ToolAgent:
    """Return an agent of the team."""
    return ToolAgent(
        role,
        chat_client(role, toolbox),
        workbench=bench,
        system_message=system,
        max_tool_iterations=max(1, toolbox.max_turns),
    )


async def work(role: str, task: Problem, part: Toolbox) -> str:
    """Run a worker."""
    texts = part.prompts.worker
    return await run_agent(
        texts.user(task), member(role, texts.system, part, StaticWorkbench([*functions(part)]))
    )


class AutoGenTeamIdiomatic:
    """The planner keeps its history and continues with the critic's remarks."""

    roles = ROLES

    async def solve(self, problem: Problem, toolbox: Toolbox) -> str:
        prompts: TeamPrompts = toolbox.prompts
        workers = Workers(problem.task_id, toolbox, work)
        planner = member(PLANNER, prompts.planner.system, toolbox, Bench(workers))
        answer = await run_agent(prompts.planner.user(problem), planner)
        review = replace(problem, context=prompts.review(workers.reports, answer))
        critic = member(CRITIC, prompts.critic.system, toolbox, StaticWorkbench([]))
        reply = await run_agent(prompts.critic.user(review), critic)
        return answer if prompts.approves(reply) else await run_agent(reply, planner)

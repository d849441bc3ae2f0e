"""The team as the OpenAI Agents SDK means it: a manager that keeps control, whose tools are agents.

The SDK's documentation calls this "manager (agents as tools)"; its handoffs would give the conversation away. Of its
two ways to make a tool of an agent this is "customizing tool-agents": a function tool that starts `Runner.run` itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from agents import Agent, FunctionTool, MaxTurnsExceeded, ModelSettings, Runner

from harness.records import JSON, Problem
from harness.toolbox import Toolbox
from harness_openai_agents_sql.agent import RUN, chat_model
from harness_openai_agents_sql.tools_idiomatic import as_function
from harness_teams.names import CRITIC, PLANNER, ROLES
from harness_teams.prompts import Handoff, Report, TeamPrompts
from harness_teams.team import AT_ONCE, TOO_MANY


def member(role: str, system: str, toolbox: Toolbox, tools: Sequence[FunctionTool] = ()) -> Agent[None]:
    """An agent of the team."""
    return Agent[None](
        name=role,
        instructions=system,
        model=chat_model(role, toolbox),
        model_settings=ModelSettings(**toolbox.llm(role).sampling),
        tools=list(tools),
    )


@dataclass
class Workers:
    """The planner's tools, and what the workers reported."""

    task_id: str
    toolbox: Toolbox
    reports: list[Report] = field(default_factory=list)
    under_way: int = 0

    def tools(self) -> list[FunctionTool]:
        """A tool for each worker."""
        handoffs = self.toolbox.prompts.handoffs
        own = {one.tool.name: partial(self.work, one) for one in handoffs}
        part = self.toolbox.part([one.tool for one in handoffs], own)
        return [as_function(tool, part) for tool in part.tools]

    async def work(self, handoff: Handoff, given: Mapping[str, JSON]) -> str:
        """A run of a worker; what it raises ends the attempt."""
        if self.under_way == AT_ONCE:
            return TOO_MANY
        report = Report(handoff.worker, str(given["task"]))
        self.reports.append(report)
        part = self.toolbox.part(handoff.tools, at_once=True)
        texts = self.toolbox.prompts.worker
        worker = member(handoff.worker, texts.system, part, [as_function(tool, part) for tool in handoff.tools])
        self.under_way += 1
        try:
            asked = texts.user(Problem(self.task_id, report.task))
            run = await Runner.run(worker, asked, run_config=RUN, max_turns=self.toolbox.max_turns)
            report.text = str(run.final_output).strip()
        except MaxTurnsExceeded:
            pass  # it reports nothing
        finally:
            self.under_way -= 1
        return report.text


class OpenAIAgentsTeamIdiomatic:
    """The planner's run goes on with the critic's words; `max_turns` bounds the replies of each run."""

    roles = ROLES

    async def solve(self, problem: Problem, toolbox: Toolbox) -> str:
        prompts: TeamPrompts = toolbox.prompts
        workers = Workers(problem.task_id, toolbox)
        planner = member(PLANNER, prompts.planner.system, toolbox, workers.tools())
        critic = member(CRITIC, prompts.critic.system, toolbox)
        try:
            asked = prompts.planner.user(problem)
            run = await Runner.run(planner, asked, run_config=RUN, max_turns=toolbox.max_turns)
            answer = str(run.final_output).strip()
            review = replace(problem, context=prompts.review(workers.reports, answer))
            check = await Runner.run(critic, prompts.critic.user(review), run_config=RUN, max_turns=1)
            said = str(check.final_output)
            if not prompts.approves(said):
                more = [*run.to_input_list(), {"role": "user", "content": said}]
                run = await Runner.run(planner, more, run_config=RUN, max_turns=toolbox.max_turns)  # type: ignore[arg-type]
        except MaxTurnsExceeded:
            return ""
        return str(run.final_output).strip()

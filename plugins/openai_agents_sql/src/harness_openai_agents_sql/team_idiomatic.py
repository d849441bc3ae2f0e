"""The idiomatic team of the OpenAI Agents SDK: a manager that keeps control, with agents as tools.

The SDK's documentation calls this "manager (agents as tools)"; its handoffs would give up the
conversation. Of its two ways to make a tool of an agent, this is "customizing tool-agents": a
function tool that starts `Runner.run` itself.
"""

from __future__ import annotations

from dataclasses import replace

from agents import MaxTurnsExceeded, Runner

from harness.contracts.toolbox import Toolbox
from harness.records import Problem
from harness_openai_agents_sql.agent import RUN, member
from harness_openai_agents_sql.tools_idiomatic import functions
from harness_teams.names import CRITIC, PLANNER, ROLES
from harness_teams.prompts import TeamPrompts
from harness_teams.workers import Workers


async def work(role: str, task: Problem, part: Toolbox) -> str:
    """Run a worker. A worker that exceeds its turns reports nothing."""
    texts = part.prompts.worker
    worker = member(role, texts.system, part, functions(part))
    try:
        run = await Runner.run(worker, texts.user(task), run_config=RUN, max_turns=part.max_turns)
    except MaxTurnsExceeded:
        return ""
    return str(run.final_output).strip()


class OpenAIAgentsTeamIdiomatic:
    """The planner continues with the critic's remarks; `max_turns` limits each run's replies."""

    roles = ROLES

    async def solve(self, problem: Problem, toolbox: Toolbox) -> str:
        prompts: TeamPrompts = toolbox.prompts
        workers = Workers(problem.task_id, toolbox, work)
        planner = member(PLANNER, prompts.planner.system, toolbox, functions(workers.toolbox))
        critic = member(CRITIC, prompts.critic.system, toolbox)
        try:
            asked = prompts.planner.user(problem)
            run = await Runner.run(planner, asked, run_config=RUN, max_turns=toolbox.max_turns)
            answer = str(run.final_output).strip()
            review = replace(problem, context=prompts.review(workers.reports, answer))
            check = await Runner.run(
                critic, prompts.critic.user(review), run_config=RUN, max_turns=1
            )
            reply = str(check.final_output)
            if not prompts.approves(reply):
                more = [*run.to_input_list(), {"role": "user", "content": reply}]
                run = await Runner.run(planner, more, run_config=RUN, max_turns=toolbox.max_turns)  # type: ignore[arg-type]
        except MaxTurnsExceeded:
            return ""
        return str(run.final_output).strip()

"""The agent as CrewAI crews: a role, a goal and a backstory around each prompt."""

from __future__ import annotations

from typing import cast

from harness_crewai_sql.agent import chat_model  # isort: skip  (first, it keeps telemetry off)
from crewai import Agent, Crew, CrewOutput, Task
from crewai.agents.crew_agent_executor import CrewAgentExecutor
from crewai.events.utils.console_formatter import set_suppress_console_output

from harness.records import Problem
from harness.toolbox import Toolbox
from harness_sql.self_correcting.prompts import ROLES, Prompt, Prompts

GOALS = {
    "write_query": "Write one SQLite query that answers the question",
    "check_query": "Judge whether the query answers the question",
    "rewrite_query": "Repair the query so that it answers the question",
}
OUTPUTS = {
    "write_query": "The query in a ```sql block.",
    "check_query": "What is wrong, if anything, and the verdict line.",
    "rewrite_query": "The repaired query in a ```sql block.",
}


async def ask(prompt: Prompt, toolbox: Toolbox) -> str:
    """One call of a role, as a crew of one agent with one task."""
    agent = Agent(
        role=prompt.role,
        goal=GOALS[prompt.role],
        backstory=prompt.system,
        llm=chat_model(prompt.role, toolbox),
        executor_class=CrewAgentExecutor,  # the newer default holds a thread for each call under way
        allow_delegation=False,
        max_iter=1,
        max_retry_limit=0,
    )
    task = Task(description=prompt.user, expected_output=OUTPUTS[prompt.role], agent=agent)
    return cast(CrewOutput, await Crew(agents=[agent], tasks=[task], tracing=False).akickoff()).raw


class CrewAISQLIdiomatic:
    """The strict agent's control flow, each call a crew of one agent with one task."""

    roles = ROLES

    async def solve(self, problem: Problem, toolbox: Toolbox) -> str:
        set_suppress_console_output(True)  # of this rollout's context only
        prompts: Prompts = toolbox.prompts
        sql = prompts.parse_sql(await ask(prompts.write(problem), toolbox))
        for _ in range(1, toolbox.max_turns):
            result = await toolbox.execute(sql)
            remarks = await ask(prompts.check(problem, sql, result), toolbox)
            if prompts.approves(remarks):
                break
            sql = prompts.parse_sql(await ask(prompts.rewrite(problem, sql, result, remarks), toolbox))
        return sql

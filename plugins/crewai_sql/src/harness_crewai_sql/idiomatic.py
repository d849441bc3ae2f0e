"""The agent as CrewAI crews: a role, a goal and a backstory around each prompt."""

from __future__ import annotations

from typing import cast

from harness_crewai_sql.agent import chat_model  # isort: skip  (first, it keeps telemetry off)
from crewai import Agent, CrewOutput, Task
from crewai.agents.crew_agent_executor import CrewAgentExecutor
from crewai.events.utils.console_formatter import set_suppress_console_output

from harness.contracts.toolbox import Toolbox
from harness_crewai_sql.crews import UnsavedCrew
from harness_sql.self_correcting.prompts import Prompt
from harness_sql.self_correcting.reference import ReferenceSQL

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


class CrewAISQLIdiomatic(ReferenceSQL):
    """The strict agent's control flow, each call a crew of one agent with one task."""

    async def ask(self, toolbox: Toolbox, prompt: Prompt) -> str:
        """Make one call of a role and return its text."""
        set_suppress_console_output(True)  # of this rollout's context only
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
        crew = UnsavedCrew(agents=[agent], tasks=[task], tracing=False)
        return cast(CrewOutput, await crew.akickoff()).raw

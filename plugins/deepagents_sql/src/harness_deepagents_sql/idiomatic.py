"""The SQL agent as in DeepAgents' documentation: `create_deep_agent` with a tool for queries."""

from __future__ import annotations

from functools import cache
from typing import Any

from langchain_core.tools import tool

from harness.contracts.toolbox import Toolbox
from harness.records import Problem
from harness_deepagents_sql.rollouts import ROLLOUT, Rollout, deep_agent, follow

TRY = "\nCall the tool `run_query` to try a query before you reply."


# Not `execute`, which is the name of the framework's own tool for shell commands.
@tool
async def run_query(sql: str) -> str:
    """Run a query on the database and return its result."""
    rollout = ROLLOUT.get()
    rollout.last_query = sql
    return await rollout.toolbox.execute(sql)


@cache
def agent_for(system: str) -> Any:
    """Return the deep agent of a system prompt, which is the same for all questions."""
    return deep_agent(system, [run_query])


class DeepAgentsSQLIdiomatic:
    """The model decides when to run a query and when to stop; `max_turns` bounds its calls."""

    roles = ("write_query",)

    async def solve(self, problem: Problem, toolbox: Toolbox) -> str:
        prompt = toolbox.prompts.write(problem)
        rollout = Rollout(toolbox, "write_query", calls=toolbox.max_turns, answers_last=False)
        reply = await follow(agent_for(prompt.system + TRY), prompt.user, rollout)
        return str(toolbox.prompts.parse_sql(reply)) if reply else rollout.last_query

"""One agent of the OpenAI Agents SDK that calls an execute tool as often as it chooses."""

from __future__ import annotations

from dataclasses import dataclass

from agents import MaxTurnsExceeded, RunContextWrapper, Runner, function_tool

from harness.contracts.toolbox import Toolbox
from harness.records import Problem
from harness_openai_agents_sql.agent import RUN, member
from harness_sql.self_correcting.prompts import TRY


@dataclass
class Session:
    """The part of the rollout that the tool needs."""

    toolbox: Toolbox
    last_sql: str = ""


@function_tool(failure_error_function=None)
async def execute(session: RunContextWrapper[Session], sql: str) -> str:
    """Run a query on the database and return its result.

    Args:
        sql: One SQLite query.
    """
    session.context.last_sql = sql
    return await session.context.toolbox.execute(sql)


class OpenAIAgentsSQLIdiomatic:
    """The model decides when to execute and when to stop; `max_turns` bounds its calls."""

    roles = ("write_query",)

    async def solve(self, problem: Problem, toolbox: Toolbox) -> str:
        prompt = toolbox.prompts.write(problem)
        agent = member("write_query", prompt.system + TRY, toolbox, [execute])
        session = Session(toolbox)
        try:
            run = await Runner.run(
                agent, prompt.user, context=session, run_config=RUN, max_turns=toolbox.max_turns
            )
        except MaxTurnsExceeded:
            return session.last_sql
        return str(toolbox.prompts.parse_sql(str(run.final_output)))

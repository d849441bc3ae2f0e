"""The self-correcting SQL agent in plain Python, which all plugins must match call for call."""

from __future__ import annotations

from harness.contracts.toolbox import Toolbox
from harness.records import Problem
from harness_sql.self_correcting.prompts import Prompt
from harness_sql.self_correcting.roles import ROLES


class ReferenceSQL:
    """write -> execute -> check -> (end | rewrite -> ...); the last query is unchecked."""

    roles = ROLES

    async def solve(self, problem: Problem, toolbox: Toolbox) -> str:
        prompts = toolbox.prompts
        sql: str = prompts.parse_sql(await self.ask(toolbox, prompts.write(problem)))
        for _ in range(1, toolbox.max_turns):
            result = await toolbox.execute(sql)
            remarks = await self.ask(toolbox, prompts.check(problem, sql, result))
            if prompts.approves(remarks):
                break
            sql = prompts.parse_sql(
                await self.ask(toolbox, prompts.rewrite(problem, sql, result, remarks))
            )
        return sql

    async def ask(self, toolbox: Toolbox, prompt: Prompt) -> str:
        """Make one call of a role and return its text."""
        reply = await toolbox.llm(prompt.role).complete(toolbox.http_client, prompt.messages)
        return reply.get("content") or ""

"""Agents that are the reference but for one fault: what the proofs of parity are tested with."""

from __future__ import annotations

from dataclasses import replace

import httpx

from harness.contracts.toolbox import Toolbox
from harness.records import Problem
from harness_sql.self_correcting.prompts import Prompt
from harness_sql.self_correcting.reference import ReferenceSQL


class NeverAcceptsNothing(ReferenceSQL):
    """Rewrites a query whose result is empty, `0` or `NULL`, even when the check approved it."""

    async def solve(self, problem: Problem, toolbox: Toolbox) -> str:
        prompts = toolbox.prompts
        sql: str = prompts.parse_sql(await self.ask(toolbox, prompts.write(problem)))
        for _ in range(1, toolbox.max_turns):
            result = await toolbox.execute(sql)
            remarks = await self.ask(toolbox, prompts.check(problem, sql, result))
            if prompts.approves(remarks) and not self._is_nothing(result):
                break
            sql = prompts.parse_sql(
                await self.ask(toolbox, prompts.rewrite(problem, sql, result, remarks))
            )
        return sql

    @staticmethod
    def _is_nothing(result: str) -> bool:
        """Whether no row has a value other than 0 and NULL; a line of column names comes first."""
        return result == "no rows" or all(row in ("0", "NULL") for row in result.splitlines()[1:])


class ChangesAfterRollouts(ReferenceSQL):
    """Answers without a check once it has had `after` rollouts."""

    after = 50

    def __init__(self) -> None:
        self.rollouts = 0

    async def solve(self, problem: Problem, toolbox: Toolbox) -> str:
        self.rollouts += 1
        if self.rollouts <= self.after:
            return await super().solve(problem, toolbox)
        written = await self.ask(toolbox, toolbox.prompts.write(problem))
        sql: str = toolbox.prompts.parse_sql(written)
        return sql


class Retries(ReferenceSQL):
    """Sends a call again that the endpoint refused."""

    async def ask(self, toolbox: Toolbox, prompt: Prompt) -> str:
        try:
            return await super().ask(toolbox, prompt)
        except httpx.HTTPError:
            return await super().ask(toolbox, prompt)


class SwallowsErrors(ReferenceSQL):
    """Takes the text of a refused call for the model's reply."""

    async def ask(self, toolbox: Toolbox, prompt: Prompt) -> str:
        try:
            return await super().ask(toolbox, prompt)
        except httpx.HTTPStatusError as error:
            return error.response.text


class DropsStop(ReferenceSQL):
    """Leaves the parameter `stop` out of its requests."""

    async def ask(self, toolbox: Toolbox, prompt: Prompt) -> str:
        llm = toolbox.llm(prompt.role)
        sampling = {name: value for name, value in llm.sampling.items() if name != "stop"}
        llm = replace(llm, sampling=sampling)
        reply = await llm.complete(toolbox.http_client, prompt.messages)
        return reply.get("content") or ""


class AddsASystemLine(ReferenceSQL):
    """Adds a line to the system message of the third turn."""

    async def solve(self, problem: Problem, toolbox: Toolbox) -> str:
        prompts = toolbox.prompts
        sql: str = prompts.parse_sql(await self.ask(toolbox, prompts.write(problem)))
        for turn in range(1, toolbox.max_turns):
            result = await toolbox.execute(sql)
            remarks = await self.ask(toolbox, prompts.check(problem, sql, result))
            if prompts.approves(remarks):
                break
            prompt = prompts.rewrite(problem, sql, result, remarks)
            if turn == 2:
                prompt = replace(prompt, system=f"{prompt.system}\nThink step by step.")
            sql = prompts.parse_sql(await self.ask(toolbox, prompt))
        return sql

"""The self-correcting SQL agent as three agents of the OpenAI Agents SDK, orchestrated in code."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from agents import Agent, ModelSettings, OpenAIChatCompletionsModel, RunConfig, Runner, Tool
from openai import AsyncOpenAI

from harness.contracts.toolbox import Toolbox
from harness.records import Problem
from harness_sql.self_correcting.prompts import Prompt, Prompts
from harness_sql.self_correcting.roles import ROLES

RUN = RunConfig(tracing_disabled=True, workflow_name="harness")


def chat_client(role: str, toolbox: Toolbox) -> AsyncOpenAI:
    """Return a client of a role's endpoint on the runner's connection pool."""
    llm = toolbox.llm(role)
    return AsyncOpenAI(
        base_url=llm.base_url,
        api_key=llm.api_key,
        http_client=toolbox.http_client,
        timeout=llm.timeout_s,
        max_retries=0,
    )


def chat_model(role: str, toolbox: Toolbox) -> OpenAIChatCompletionsModel:
    """Return the SDK's model of a role's endpoint."""
    return OpenAIChatCompletionsModel(toolbox.llm(role).model, chat_client(role, toolbox))


def member(role: str, system: str, toolbox: Toolbox, tools: Sequence[Tool] = ()) -> Agent[Any]:
    """Return a role as an agent."""
    return Agent(
        name=role,
        instructions=system,
        model=chat_model(role, toolbox),
        model_settings=ModelSettings(**toolbox.llm(role).sampling),
        tools=list(tools),
    )


async def ask(prompt: Prompt, toolbox: Toolbox) -> str:
    """Make one call of a role, as an agent without tools."""
    run = await Runner.run(
        member(prompt.role, prompt.system, toolbox), prompt.user, run_config=RUN, max_turns=1
    )
    return str(run.final_output)


class OpenAIAgentsSQL:
    """write -> execute -> check -> (end | rewrite -> ...); the last query is unchecked."""

    roles = ROLES

    async def solve(self, problem: Problem, toolbox: Toolbox) -> str:
        prompts: Prompts = toolbox.prompts
        sql = prompts.parse_sql(await ask(prompts.write(problem), toolbox))
        for _ in range(1, toolbox.max_turns):
            result = await toolbox.execute(sql)
            remarks = await ask(prompts.check(problem, sql, result), toolbox)
            if prompts.approves(remarks):
                break
            sql = prompts.parse_sql(
                await ask(prompts.rewrite(problem, sql, result, remarks), toolbox)
            )
        return sql

"""The self-correcting SQL agent in Pydantic AI: an agent a role."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from openai import AsyncOpenAI
from pydantic_ai import Agent, ModelSettings, Tool
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

from harness.records import Problem
from harness.toolbox import Toolbox
from harness_sql.self_correcting.prompts import ROLES, Prompt, Prompts


def chat_model(role: str, toolbox: Toolbox) -> OpenAIChatModel:
    """The framework's model of a role's endpoint, on the runner's connection pool."""
    llm = toolbox.llm(role)
    client = AsyncOpenAI(
        base_url=llm.base_url,
        api_key=llm.api_key,
        http_client=toolbox.http_client,
        timeout=llm.timeout_s,
        max_retries=0,
    )
    return OpenAIChatModel(llm.model, provider=OpenAIProvider(openai_client=client))


def settings(role: str, toolbox: Toolbox, **more: Any) -> ModelSettings:
    """The run's sampling as the framework takes it."""
    return ModelSettings(**toolbox.llm(role).sampling, **more)


def member(role: str, system: str, toolbox: Toolbox, tools: Sequence[Tool] = ()) -> Agent[Any, Any]:
    """A role as an agent."""
    return Agent(
        chat_model(role, toolbox),
        output_type=str | None,  # without None, an empty reply is answered with a second call
        name=role,
        system_prompt=system,
        model_settings=settings(role, toolbox),
        tools=list(tools),
    )


async def ask(prompt: Prompt, toolbox: Toolbox) -> str:
    """One call of a role, as an agent without tools."""
    run = await member(prompt.role, prompt.system, toolbox).run(prompt.user)
    return run.output or ""


class PydanticAISQL:
    """write -> execute -> check -> (end | rewrite -> execute -> check ...), the last query unchecked."""

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

"""The self-correcting SQL agent in Pydantic AI."""

from __future__ import annotations

from openai import AsyncOpenAI
from pydantic_ai import Agent, ModelSettings
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

import harness_sql as sql
from harness import Problem, Toolbox


def chat_model(role: str, toolbox: Toolbox) -> OpenAIChatModel:
    llm = toolbox.llm(role)
    client = AsyncOpenAI(
        base_url=llm.base_url,
        api_key=llm.api_key,
        http_client=toolbox.http_client,
        timeout=llm.timeout_s,
        max_retries=0,
    )
    return OpenAIChatModel(llm.model, provider=OpenAIProvider(openai_client=client))


async def ask(prompt: sql.Prompt, toolbox: Toolbox) -> str:
    agent = Agent(
        chat_model(prompt.role, toolbox),
        output_type=str | None,  # without None, an empty reply is answered with a second call
        name=prompt.role,
        system_prompt=prompt.system,
        model_settings=ModelSettings(**toolbox.llm(prompt.role).sampling),
    )
    return (await agent.run(prompt.user)).output or ""


class PydanticAISQL:
    """write -> execute -> check -> (end | rewrite -> execute -> check ...), the last query unchecked."""

    roles = sql.ROLES

    async def solve(self, problem: Problem, toolbox: Toolbox) -> str:
        prompts = toolbox.prompts
        sql: str = prompts.parse_sql(await ask(prompts.write(problem), toolbox))
        for _ in range(1, toolbox.max_turns):
            result = await toolbox.execute(sql)
            remarks = await ask(prompts.check(problem, sql, result), toolbox)
            if prompts.approves(remarks):
                break
            sql = prompts.parse_sql(
                await ask(prompts.rewrite(problem, sql, result, remarks), toolbox)
            )
        return sql

"""The self-correcting SQL agent on smolagents' model class."""

from __future__ import annotations

from typing import Any

from openai import AsyncOpenAI
from smolagents import OpenAIServerModel

from harness.contracts.toolbox import Toolbox
from harness.records import Problem
from harness_sql.self_correcting.prompts import Prompt, Prompts
from harness_sql.self_correcting.roles import ROLES


def async_client(role: str, toolbox: Toolbox) -> AsyncOpenAI:
    """Return a client of a role's endpoint on the runner's connection pool."""
    llm = toolbox.llm(role)
    return AsyncOpenAI(
        base_url=llm.base_url,
        api_key=llm.api_key,
        http_client=toolbox.http_client,
        timeout=llm.timeout_s,
        max_retries=0,
    )


def chat_model(
    role: str,
    toolbox: Toolbox,
    client: Any,
    kind: type[OpenAIServerModel] = OpenAIServerModel,
    **more: Any,
) -> OpenAIServerModel:
    """Return smolagents' model of a role's endpoint.

    Args:
        client: The OpenAI client, or what has its `chat.completions.create`.
        more: Parameters of every request in addition to the run's sampling.
    """
    llm = toolbox.llm(role)
    return kind(
        llm.model,
        client=client,
        retry=False,
        flatten_messages_as_text=True,
        **llm.sampling,
        **more,
    )


async def ask(prompt: Prompt, toolbox: Toolbox) -> str:
    """Make one call of a role, with the request that the model class builds."""
    model = chat_model(prompt.role, toolbox, async_client(prompt.role, toolbox))
    messages = [
        {"role": message["role"], "content": [{"type": "text", "text": message["content"]}]}
        for message in prompt.messages
    ]
    request = model._prepare_completion_kwargs(messages, model=model.model_id)
    # `generate` would wait for the reply in the event loop's thread.
    reply = await model.client.chat.completions.create(**request)
    return reply.choices[0].message.content or ""


class SmolagentsSQL:
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
            rewrite = prompts.rewrite(problem, sql, result, remarks)
            sql = prompts.parse_sql(await ask(rewrite, toolbox))
        return sql

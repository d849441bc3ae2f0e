"""The self-correcting SQL agent in Pydantic AI: an agent for each role."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, cast

from openai import AsyncOpenAI
from openai.types.chat import ChatCompletionMessageFunctionToolCallParam
from pydantic_ai import Agent, ModelSettings, RunContext, Tool
from pydantic_ai.capabilities import AbstractCapability, WrapRunHandler
from pydantic_ai.messages import ToolCallPart
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.profiles.openai import OpenAIModelProfile
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.run import AgentRunResult

from harness.contracts.toolbox import Toolbox
from harness.records import Problem
from harness_sql.self_correcting.prompts import Prompt, Prompts
from harness_sql.self_correcting.roles import ROLES

# The framework derives a profile from the model's name, and cuts reasoning out of replies.
# No reply contains these tags, so that the whole text reaches the program.
PROFILE = OpenAIModelProfile(
    thinking_tags=("\0think", "\0"), openai_chat_send_back_thinking_parts=False
)

TEXT: Any = str | None
"""Output of an agent. Without None, it would answer an empty reply with a second call."""


class VerbatimChatModel(OpenAIChatModel):
    """Send the model's tool calls back as the model wrote them.

    The framework would wrap arguments that are no JSON object.
    """

    @staticmethod
    def _map_tool_call(t: ToolCallPart) -> ChatCompletionMessageFunctionToolCallParam:
        return {
            "id": t.tool_call_id,
            "type": "function",
            "function": {"name": t.tool_name, "arguments": str(t.args or "")},
        }


def chat_model(
    role: str, toolbox: Toolbox, kind: type[OpenAIChatModel] = VerbatimChatModel
) -> OpenAIChatModel:
    """Return the framework's model of a role's endpoint, on the runner's connection pool."""
    llm = toolbox.llm(role)
    client = AsyncOpenAI(
        base_url=llm.base_url,
        api_key=llm.api_key,
        http_client=toolbox.http_client,
        timeout=llm.timeout_s,
        max_retries=0,
    )
    return kind(llm.model, provider=OpenAIProvider(openai_client=client), profile=PROFILE)


def settings(role: str, toolbox: Toolbox, **more: Any) -> ModelSettings:
    """Return the run's sampling in the framework's type."""
    return cast("ModelSettings", {**toolbox.llm(role).sampling, **more})


def member(
    role: str,
    system: str,
    toolbox: Toolbox,
    tools: Sequence[Tool] = (),
    kind: type[OpenAIChatModel] = VerbatimChatModel,
) -> Agent[Any, Any]:
    """Return an agent for a role."""
    return Agent(
        chat_model(role, toolbox, kind),
        output_type=TEXT,
        name=role,
        system_prompt=system,
        model_settings=settings(role, toolbox),
        tools=list(tools),
    )


class RunTask(AbstractCapability[Any]):
    """Remember the task in which the framework waits for the end of a run."""

    task: asyncio.Task[Any] | None = None

    async def wrap_run(
        self, ctx: RunContext[Any], *, handler: WrapRunHandler
    ) -> AgentRunResult[Any]:
        self.task = asyncio.current_task()
        return await handler()


async def run_agent(agent: Agent[Any, Any], user: str, **more: Any) -> str:
    """Run an agent and return its last text.

    A run that is cancelled while it starts would leave a task that waits forever for its end.
    """
    waits = RunTask()
    try:
        run = await agent.run(user, capabilities=[waits], **more)
    finally:
        if waits.task not in (None, asyncio.current_task()):
            waits.task.cancel()
    return run.output or ""


async def ask(prompt: Prompt, toolbox: Toolbox) -> str:
    """Make one call of a role, as an agent without tools."""
    return await run_agent(member(prompt.role, prompt.system, toolbox), prompt.user)


class PydanticAISQL:
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

"""Create a role's model client and run agents and teams."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.base import TaskResult, TaskRunner
from autogen_agentchat.teams import BaseGroupChat
from autogen_core import CancellationToken
from autogen_core.models import ModelFamily, ModelInfo
from autogen_ext.models.openai import OpenAIChatCompletionClient

from harness.contracts.toolbox import Toolbox

# Every agent of a team logs the error that ended it; the rollout's record is the harness's to keep.
logging.getLogger("autogen_core").setLevel(logging.CRITICAL)

MODEL_INFO = ModelInfo(
    vision=False,
    function_calling=True,
    json_output=False,
    structured_output=False,
    family=ModelFamily.UNKNOWN,
    multiple_system_messages=False,
)


def chat_client(
    role: str,
    toolbox: Toolbox,
    kind: type[OpenAIChatCompletionClient] = OpenAIChatCompletionClient,
    **more: Any,
) -> OpenAIChatCompletionClient:
    """Return a client of a role's endpoint on the runner's connection pool."""
    llm = toolbox.llm(role)
    return kind(  # type: ignore[call-arg]  # what AsyncOpenAI takes it takes too; its types lack http_client
        model=llm.model,
        base_url=llm.base_url,
        api_key=llm.api_key,
        http_client=toolbox.http_client,
        timeout=llm.timeout_s,
        max_retries=0,
        model_info=MODEL_INFO,
        include_name_in_message=False,
        **llm.sampling,
        **more,
    )


class ToolAgent(AssistantAgent):
    """An AssistantAgent with a run that ends if a tool call raises. AutoGen's would wait forever.

    A call raises for arguments that Python's JSON decoder cannot parse, such as 2,000 nested lists.
    """

    @staticmethod
    async def _execute_tool_call(*, stream: asyncio.Queue[Any], **more: Any) -> Any:  # type: ignore[override]
        try:
            return await AssistantAgent._execute_tool_call(stream=stream, **more)
        except BaseException:
            stream.put_nowait(None)  # what it waits for; the exception is then its to raise
            raise


async def run_agent(task: str, agent: AssistantAgent) -> str:
    """Run an agent with tools and return its last message."""
    run = await _run(task, agent)
    return str(run.messages[-1].to_text()).strip()


async def run_team(task: str, group: BaseGroupChat) -> TaskResult:
    """Run a team."""
    return await _run(task, group)


async def _run(task: str, runner: TaskRunner) -> TaskResult:
    """Run an agent or a team; cancellation ends it at once.

    Only AutoGen's token cancels what it runs as separate tasks, model calls and tool calls.
    AutoGen itself is not cancelled, so that it still awaits these tasks and none of their
    exceptions is lost.
    """
    token = CancellationToken()
    run = asyncio.ensure_future(runner.run(task=task, cancellation_token=token))
    try:
        return await asyncio.shield(run)
    except asyncio.CancelledError:
        token.cancel()
        await asyncio.gather(run, return_exceptions=True)
        raise
    finally:
        token.cancel()  # a tool call must not outlive a run that another call ended

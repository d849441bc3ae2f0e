"""A role's chat client."""

from __future__ import annotations

from typing import Any

from agent_framework import FunctionInvocationConfiguration, Message
from agent_framework.observability import disable_instrumentation
from agent_framework.openai import OpenAIChatCompletionClient
from openai import AsyncOpenAI

from harness.contracts.toolbox import Toolbox

# Enabled by default: spans of every call, sent to any tracer of the process.
disable_instrumentation()


def original_form(message: Message, prepared: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Send null content for replies with only tool calls, and no names of earlier runs."""
    for sent in prepared:
        sent.pop("name", None)
        if "tool_calls" in sent:
            sent.setdefault("content", None)
    return prepared


def chat_client(
    role: str, toolbox: Toolbox, invocation: FunctionInvocationConfiguration | None = None
) -> OpenAIChatCompletionClient:
    """Return a client of a role's endpoint on the runner's connection pool."""
    llm = toolbox.llm(role)
    return OpenAIChatCompletionClient(
        llm.model,
        async_client=AsyncOpenAI(
            base_url=llm.base_url,
            api_key=llm.api_key,
            http_client=toolbox.http_client,
            timeout=llm.timeout_s,
            max_retries=0,
        ),
        message_preparer=original_form,
        function_invocation_configuration=invocation,
    )


def options(role: str, toolbox: Toolbox) -> Any:
    """Return the request options. Without them, an agent would add `tool_choice`."""
    return {**toolbox.llm(role).sampling, "tool_choice": None}

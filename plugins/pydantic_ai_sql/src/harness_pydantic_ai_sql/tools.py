"""The tool-calling agent on Pydantic AI's messages and model, asked directly.

Its `Agent` answers unknown tools and arguments that are no JSON in its own words.
"""

from __future__ import annotations

from itertools import count
from typing import Any

from pydantic_ai.direct import model_request
from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    SystemPromptPart,
    ToolReturnPart,
    UserPromptPart,
)

from harness.contracts.toolbox import Toolbox
from harness.records import Problem
from harness_pydantic_ai_sql.agent import chat_model, settings
from harness_sql.tool_loop.prompts import ROLES


class PydanticAITools:
    """Ask the model and call the tools, until a reply has no call."""

    roles = ROLES

    async def solve(self, problem: Problem, toolbox: Toolbox) -> str:
        role = self.roles[0]
        prompts = toolbox.prompts
        model = chat_model(role, toolbox)
        # The framework would rewrite the tools' schemas, which chat templates print.
        definitions = [tool.definition for tool in toolbox.tools]
        offered: dict[str, Any] = {"extra_body": {"tools": definitions}} if definitions else {}
        sampling = settings(role, toolbox, **offered)
        first = ModelRequest(
            parts=[SystemPromptPart(prompts.system), UserPromptPart(prompts.user(problem))]
        )
        messages: list[ModelMessage] = [first]
        for turn in count():
            reply = await model_request(model, messages, model_settings=sampling)
            if not reply.tool_calls or turn == toolbox.max_turns:
                break
            calls = [(call.tool_name, str(call.args or "")) for call in reply.tool_calls]
            texts = await toolbox.call_all(calls)
            results = [
                ToolReturnPart(call.tool_name, text, call.tool_call_id)
                for call, text in zip(reply.tool_calls, texts, strict=True)
            ]
            messages += [reply, ModelRequest(parts=results)]
        return (reply.text or "").strip()

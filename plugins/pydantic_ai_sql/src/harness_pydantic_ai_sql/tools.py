"""The tool-calling agent on Pydantic AI's messages and model, asked directly.

Its `Agent` answers unknown tools and arguments that are no JSON in words of its own; here the environment does.
"""

from __future__ import annotations

from itertools import count

from pydantic_ai.direct import model_request
from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    SystemPromptPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models import ModelRequestParameters
from pydantic_ai.tools import ToolDefinition

from harness.records import Problem
from harness.toolbox import Toolbox
from harness_pydantic_ai_sql.agent import chat_model, settings
from harness_sql.tool_loop.prompts import ROLES


class PydanticAITools:
    """Asks the model and calls the tools, until a reply calls none."""

    roles = ROLES

    async def solve(self, problem: Problem, toolbox: Toolbox) -> str:
        role, prompts = self.roles[0], toolbox.prompts
        model = chat_model(role, toolbox)
        offered = [
            ToolDefinition(
                name=tool.name,
                description=tool.description,
                parameters_json_schema=dict(tool.parameters),
            )
            for tool in toolbox.tools
        ]
        # The framework rewrites schemas, which chat templates print.
        exact = {"tools": [tool.definition for tool in toolbox.tools]} if offered else None
        sampling = settings(role, toolbox, **({"extra_body": exact} if exact else {}))
        parameters = ModelRequestParameters(function_tools=offered)
        first = ModelRequest(
            parts=[SystemPromptPart(prompts.system), UserPromptPart(prompts.user(problem))]
        )
        messages: list[ModelMessage] = [first]
        for turn in count():
            reply = await model_request(
                model, messages, model_settings=sampling, model_request_parameters=parameters
            )
            if not reply.tool_calls or turn == toolbox.max_turns:
                break
            calls = [(call.tool_name, call.args_as_json_str()) for call in reply.tool_calls]
            texts = await toolbox.call_all(calls)
            results = [
                ToolReturnPart(call.tool_name, text, call.tool_call_id)
                for call, text in zip(reply.tool_calls, texts, strict=True)
            ]
            messages += [reply, ModelRequest(parts=results)]
        return (reply.text or "").strip()

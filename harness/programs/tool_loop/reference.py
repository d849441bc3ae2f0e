"""The tool-calling agent in plain Python: what every framework's version must do, call for call."""

from __future__ import annotations

from typing import Any

from openai import AsyncOpenAI

from harness.programs.tool_loop.prompts import ROLES
from harness.records import Problem
from harness.toolbox import Toolbox


class ReferenceTools:
    """Ask; carry out what tools are called, in order; ask again, until a reply calls none.

    At most `max_turns` replies are followed: the text of the next one is the answer, whatever it calls.
    """

    roles = ROLES

    async def solve(self, problem: Problem, toolbox: Toolbox) -> str:
        llm = toolbox.llm(self.roles[0])
        client = AsyncOpenAI(
            base_url=llm.base_url,
            api_key=llm.api_key,
            http_client=toolbox.http_client,
            timeout=llm.timeout_s,
            max_retries=0,
        )
        messages: list[Any] = toolbox.prompts.messages(problem)
        tools: Any = [tool.definition for tool in toolbox.tools]
        for turn in range(toolbox.max_turns + 1):
            completion = await client.chat.completions.create(
                model=llm.model, messages=messages, tools=tools, **llm.sampling
            )
            reply = completion.choices[0].message
            if not reply.tool_calls or turn == toolbox.max_turns:
                break
            calls = [call for call in reply.tool_calls if call.type == "function"]
            said = [{"id": call.id, "type": "function", "function": call.function.model_dump()} for call in calls]
            messages.append({"role": "assistant", "content": reply.content or None, "tool_calls": said})
            for call in calls:
                text = await toolbox.call(call.function.name, call.function.arguments)
                messages.append({"role": "tool", "tool_call_id": call.id, "content": text})
        return (reply.content or "").strip()

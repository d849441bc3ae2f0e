"""The tool-calling agent in plain Python, which framework plugins must match call for call."""

from __future__ import annotations

from itertools import count
from typing import Any

from harness.contracts.toolbox import LLM, Toolbox
from harness.records import Problem
from harness_sql.tool_loop.prompts import ROLES


async def follow(llm: LLM, toolbox: Toolbox, messages: list[Any]) -> tuple[str, bool]:
    """Send messages and execute the tool calls of replies in order, until a reply has none.

    At most `max_turns` replies are followed by tool calls.

    Args:
        messages: The messages so far. Tool calls and their results are appended.

    Returns:
        The text of the last reply, and whether it has tool calls that were not executed.
    """
    # Servers refuse an empty list.
    offered = {"tools": [tool.definition for tool in toolbox.tools]} if toolbox.tools else {}
    for turn in count():
        reply = await llm.complete(toolbox.http_client, messages, **offered)
        calls = [call for call in reply.get("tool_calls") or () if call.get("type") == "function"]
        if not calls or turn == toolbox.max_turns:
            break
        tool_calls = [{name: call[name] for name in ("id", "type", "function")} for call in calls]
        messages.append(
            {"role": "assistant", "content": reply.get("content") or None, "tool_calls": tool_calls}
        )
        texts = await toolbox.call_all(
            [(call["function"]["name"], call["function"]["arguments"]) for call in calls]
        )
        for call, text in zip(calls, texts, strict=True):
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": text})
    return reply.get("content") or "", bool(calls)


class ReferenceTools:
    """`follow` the first request. The last reply's text is the answer, even with tool calls."""

    roles = ROLES

    async def solve(self, problem: Problem, toolbox: Toolbox) -> str:
        words, _ = await follow(
            toolbox.llm(self.roles[0]), toolbox, toolbox.prompts.messages(problem)
        )
        return words.strip()

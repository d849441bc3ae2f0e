"""The tool-calling agent in plain Python: what every framework's version must do, call for call."""

from __future__ import annotations

from itertools import count
from typing import Any

from harness.records import Problem
from harness.toolbox import LLM, Toolbox
from harness_sql.tool_loop.prompts import ROLES


async def follow(llm: LLM, toolbox: Toolbox, messages: list[Any]) -> tuple[str, bool]:
    """Ask; carry out what tools are called, in order; ask again, until a reply calls none.

    At most `max_turns` replies are followed.

    Args:
        messages: What is said; calls and what they gave are added.

    Returns:
        What the last reply says, and whether it calls tools all the same.
    """
    # Servers refuse an empty list.
    offered = {"tools": [tool.definition for tool in toolbox.tools]} if toolbox.tools else {}
    for turn in count():
        reply = await llm.complete(toolbox.http_client, messages, **offered)
        calls = [call for call in reply.get("tool_calls") or () if call.get("type") == "function"]
        if not calls or turn == toolbox.max_turns:
            break
        said = [{name: call[name] for name in ("id", "type", "function")} for call in calls]
        messages.append(
            {"role": "assistant", "content": reply.get("content") or None, "tool_calls": said}
        )
        texts = await toolbox.call_all(
            [(call["function"]["name"], call["function"]["arguments"]) for call in calls]
        )
        for call, text in zip(calls, texts, strict=True):
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": text})
    return reply.get("content") or "", bool(calls)


class ReferenceTools:
    """`follow` the first request; the text of the last reply is the answer, whatever it calls."""

    roles = ROLES

    async def solve(self, problem: Problem, toolbox: Toolbox) -> str:
        words, _ = await follow(
            toolbox.llm(self.roles[0]), toolbox, toolbox.prompts.messages(problem)
        )
        return words.strip()

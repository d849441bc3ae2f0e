"""The tool-calling agent in plain Python: what every framework's version must do, call for call."""

from __future__ import annotations

from typing import Any

from harness.records import Problem
from harness.toolbox import LLM, Toolbox
from harness_sql.tool_loop.prompts import ROLES


def calls_of(reply: dict[str, Any]) -> list[Any]:
    """The tools that a reply calls."""
    return [call for call in reply.get("tool_calls") or () if call.get("type") == "function"]


async def follow(llm: LLM, toolbox: Toolbox, messages: list[Any]) -> dict[str, Any]:
    """Ask; carry out what tools are called, in order; ask again, until a reply calls none, and return that.

    At most `max_turns` replies are followed: the next one is returned, whatever it calls.

    Args:
        messages: What is said; calls and what they gave are added.
    """
    # Servers refuse an empty list.
    offered = {"tools": [tool.definition for tool in toolbox.tools]} if toolbox.tools else {}
    for _ in range(toolbox.max_turns):
        reply = await llm.complete(toolbox.http_client, messages, **offered)
        if not (calls := calls_of(reply)):
            return reply
        said = [{name: call[name] for name in ("id", "type", "function")} for call in calls]
        messages.append({"role": "assistant", "content": reply.get("content") or None, "tool_calls": said})
        for call in calls:
            text = await toolbox.call(call["function"]["name"], call["function"]["arguments"])
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": text})
    return await llm.complete(toolbox.http_client, messages, **offered)


class ReferenceTools:
    """`follow` the first request; the text of the reply is the answer, whatever it calls."""

    roles = ROLES

    async def solve(self, problem: Problem, toolbox: Toolbox) -> str:
        reply = await follow(toolbox.llm(self.roles[0]), toolbox, toolbox.prompts.messages(problem))
        return (reply.get("content") or "").strip()

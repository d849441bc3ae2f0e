"""An agent of the Claude Agent SDK, where it is installed: `python claude_agent.py QUESTION`.

It is told where its model is by the SDK's own variables, and prints its answer, and the texts that were streamed to it.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

from claude_agent_sdk import (
    ClaudeAgentOptions,
    ResultMessage,
    StreamEvent,
    create_sdk_mcp_server,
    query,
    tool,
)


@tool("query", "Run a query.", {"sql": str})
async def run(arguments: dict[str, Any]) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": "3"}]}


async def main(question: str) -> None:
    options = ClaudeAgentOptions(
        system_prompt="Be brief.",
        model="scripted",
        tools=[],
        mcp_servers={"shop": create_sdk_mcp_server("shop", tools=[run])},
        allowed_tools=["mcp__shop__query"],
        setting_sources=[],
        strict_mcp_config=True,
        max_turns=4,
        include_partial_messages=True,
    )
    answer, streamed = None, []
    async for message in query(prompt=question, options=options):
        if isinstance(message, StreamEvent) and message.event["type"] == "content_block_delta":
            streamed.append(
                message.event["delta"].get("text") or message.event["delta"]["partial_json"]
            )
        elif isinstance(message, ResultMessage):
            answer = message.result
    sys.stdout.write(json.dumps({"answer": answer, "streamed": streamed}) + "\n")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))

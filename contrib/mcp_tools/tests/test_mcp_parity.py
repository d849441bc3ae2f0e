"""Strict agents of all frameworks, unchanged, send the same requests where a real MCP server carries the tools out."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from harness.contracts.programs import Scenario
from harness.gateway.server import GatewayServer
from harness.mock_model.completion import Reply
from harness.parity.recorder import LIMITS
from harness.plugins import agent_spec, agents_of, environment, load
from harness.records import Attempt, Problem
from harness.testing.stage import staged
from harness_mcp_tools.tasks import McpTasks
from harness_sql.self_correcting.scenarios import build_database
from harness_sql.tool_loop.scenarios import calling

EXAMPLE = Path(__file__).parents[3] / "examples" / "mcp_server.py"
TOOL = "query_database_by_sql"
REPLIES = (
    calling(
        (TOOL, '{"sql": "SELECT count(*) FROM singer"}'),
        (TOOL, ' {"sql" : "SELECT \\"金额\\" FROM \\"Verkäufe\\""}'),
    ),
    calling(
        (TOOL, '{"sql": "SELECT nme FROM singer"}'),
        ("look_up", "{}"),
        (TOOL, "{"),
        text="Let me look.",
    ),
    Reply("There are 3 singers."),
)
SCENARIO = Scenario(
    "mcp", "two calls, a tool that refuses, bad calls", REPLIES, "?", options={"environment": "sql"}
)


def canonical(body: Mapping[str, Any]) -> bytes:
    """A request without the two spellings that parity accepts (docs/parity.md)."""
    sent = dict(body)
    if "max_completion_tokens" in sent:
        sent["max_tokens"] = sent.pop("max_completion_tokens")
    if sent.get("stream") is False:
        del sent["stream"]
    return json.dumps(sent, ensure_ascii=False, sort_keys=True).encode()


@pytest.mark.slow
def test_every_framework_sends_the_same_bytes(tmp_path: Path) -> None:
    pytest.importorskip("crewai")
    strict = [name for name in agents_of("tool_loop") if agent_spec(name).strict]
    assert len(strict) == 7, strict
    file = tmp_path / "questions.jsonl"
    file.write_text(
        json.dumps({"question": "How many singers are there?", "answer": "3", "split": "val"})
    )
    server = {"command": sys.executable, "args": [str(EXAMPLE), str(build_database(tmp_path))]}
    (task,) = McpTasks(servers={"singers": server}, path=file).load("val")

    async def play(name: str) -> tuple[Attempt, list[bytes]]:
        agent = load(agent_spec(name))()
        async with staged("tool_loop", SCENARIO, gateway, tmp_path) as stage:
            request = stage.request(
                environment="mcp",
                payload=environment("mcp").payload(task, LIMITS),
                problem=Problem(task.id, task.question),
            )
            attempt = await stage.attempt(agent, name, request)
            return attempt, [canonical(call.body or {}) for call in stage.tap.calls]

    async def all_of_them() -> dict[str, tuple[Attempt, list[bytes]]]:
        return {name: await play(name) for name in strict}

    with GatewayServer() as gateway:
        found = asyncio.run(all_of_them())
    attempt, sent = found["reference_tools"]
    assert (attempt.outcome, attempt.answer) == ("ok", "There are 3 singers."), attempt.detail
    assert [call.text for call in attempt.tool_calls][:3] == [
        "count(*)\n3",
        "金额\n12.5\n7.0",
        "Error: no such column: nme",
    ]
    assert len(sent) == 3 and json.loads(sent[0])["tools"][0]["function"]["name"] == TOOL
    for name, (other, requests) in found.items():
        assert requests == sent, name
        assert [(call.tool, call.arguments, call.text, call.ok) for call in other.tool_calls] == [
            (call.tool, call.arguments, call.text, call.ok) for call in attempt.tool_calls
        ], name

"""The Claude Agent SDK, which speaks Messages only, through the gateway: its calls are calls like any other.

The SDK's wheel has a program of 400 MB with terms of its own, so that it is in no lock file:
`uv venv sdk; uv pip install --python sdk claude-agent-sdk==0.2.189`, and name the interpreter.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import sys
from pathlib import Path

import pytest

from harness.gateway.server import GatewayServer
from harness.mock_model.completion import Reply
from harness.mock_model.server import ScriptedServer

VARIABLE = "HARNESS_CLAUDE_AGENT_SDK_PYTHON"
AGENT = Path(__file__).with_name("claude_agent.py")
ODD = ' {"sql" : "SELECT \\u0027ü\\u0027"}'
"""Arguments whose spelling a parser loses."""
CALL = {
    "id": "call_1",
    "type": "function",
    "function": {"name": "mcp__shop__query", "arguments": ODD},
}
REPLIES = (Reply("Let me look.", finish_reason="tool_calls", tool_calls=[CALL]), Reply("Drei 👍."))
SAMPLING = {"temperature": 0.7, "top_p": 0.9, "max_tokens": 64}
QUIET = {
    "CLAUDE_CODE_SIMPLE": "1",  # else it describes the machine, with folder and date, in every conversation
    "CLAUDE_CODE_ATTRIBUTION_HEADER": "0",  # else the system prompt begins with the client's version
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",  # else the policy is asked for a title as well
}


@pytest.fixture
def python() -> str:
    """An interpreter that has the SDK."""
    if named := os.environ.get(VARIABLE):
        return named
    if importlib.util.find_spec("claude_agent_sdk") is None:
        pytest.skip(
            f"needs the Claude Agent SDK: name an interpreter that has claude-agent-sdk in {VARIABLE}"
        )
    return sys.executable


@pytest.mark.timeout(120)
async def test_its_calls_are_recorded_with_exact_tokens(python: str, tmp_path: Path) -> None:
    with GatewayServer() as gateway, ScriptedServer(REPLIES) as server:
        async with gateway.control() as control:
            await control.set_upstreams([server.base_url], model="scripted", token_ids=True)
            await control.open_attempt(
                "rollout", "0", sampling=SAMPLING, timeout_s=90, roles=["assistant"]
            )
            url = gateway.agent_url("rollout", "0", "assistant").removesuffix("/v1")
            where = {"ANTHROPIC_BASE_URL": url, "ANTHROPIC_API_KEY": gateway.key}
            # Nothing else of this process's variables: no account, key or setting of whoever runs the test.
            clean = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), **where, **QUIET}
            agent = await asyncio.create_subprocess_exec(
                *(python, str(AGENT), "Wie viele?"), stdout=-1, stderr=-1, env=clean, cwd=tmp_path
            )
            out, err = await agent.communicate()
            transitions, failures = await control.close_attempt("rollout", "0")
    assert agent.returncode == 0, err.decode()[-3000:]
    report = json.loads(out)
    assert report["answer"] == "Drei 👍."
    assert report["streamed"] == ["Let me look.", '{"sql":"SELECT \'ü\'"}', "Drei 👍."]

    assert not failures
    assert [one.response_text for one in transitions] == ["Let me look.", "Drei 👍."]
    for one, request in zip(transitions, server.requests, strict=True):
        assert one.response_ids and len(one.response_ids) == len(one.logprobs or ())
        assert one.overridden["thinking"]["type"] == "adaptive" and "max_tokens" in one.overridden
        assert list(one.messages) == request.messages
        assert {name: request.body[name] for name in SAMPLING} == SAMPLING
        assert [tool["function"]["name"] for tool in request.body["tools"]] == ["mcp__shop__query"]
    first, last = (list(request.messages) for request in server.requests)
    assert last[: len(first)] == first, "one conversation goes on"
    assert last[len(first)]["tool_calls"] == [CALL] and last[len(first) + 1]["content"] == "3"
    assert [one["role"] for one in first] == ["system", "user"] and first[1][
        "content"
    ] == "Wie viele?"
    assert str(first[0]["content"]).splitlines()[1:] == ["Be brief."], (
        "after a line of the SDK's own"
    )

"""Arguments of tool calls that Python's JSON cannot take: the framework would parse them."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from harness.mock_model.completion import Reply
from harness.parity.recorder import record
from harness.plugins import agent_spec, load
from harness_sql.tool_loop.scenarios import SCENARIOS, TOOL, calling


@pytest.mark.parametrize(
    "arguments", ["[" * 20_000, '{"sql": ' + "1" * 5_000 + "}"], ids=["nesting", "digits"]
)
def test_arguments_beyond_python_reach_the_toolbox(arguments: str) -> None:
    scenario = replace(SCENARIOS[0], replies=(calling((TOOL, arguments)), Reply("done")))
    agent = load(agent_spec("agent_framework_tools"))()
    (recording,) = asyncio.run(record(agent, "tool_loop", [scenario], ("alone",)))
    assert (recording.outcome, recording.answer) == ("ok", "done"), recording.detail
    assert arguments in recording.executed[0]
    assert recording.calls[1].messages[2]["tool_calls"][0]["function"]["arguments"] == arguments

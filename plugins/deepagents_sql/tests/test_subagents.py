"""Subagents of a deep agent, through a real gateway against a scripted model."""

import asyncio
import json
from itertools import count

from harness.gateway.server import GatewayServer
from harness.mock_model.completion import Reply
from harness.plugins import agent_spec, load, program
from harness.testing.stage import staged

AGENT = "deepagents_sql_idiomatic"
NUMBERS = count()


def calls(tool, **arguments):
    function = {"name": tool, "arguments": json.dumps(arguments)}
    call = {"id": f"call_{next(NUMBERS)}", "type": "function", "function": function}
    return Reply("", finish_reason="tool_calls", tool_calls=[call])


def played(folder, *replies, max_turns):
    spec = agent_spec(AGENT)
    scripts = iter(replies)

    async def play():
        scenario = program(spec.program).scenarios[0]
        async with staged(
            spec.program, scenario, gateway, folder, lambda _: next(scripts)
        ) as stage:
            request = stage.request(max_turns=max_turns)
            return await stage.attempt(load(spec)(), "subagents", request)

    with GatewayServer() as gateway:
        return asyncio.run(play())


def hand_over():
    return calls("task", description="Count the singers.", subagent_type="general-purpose")


def test_a_subagent_uses_the_environment_and_its_report_is_the_call_s_result(tmp_path):
    query = "SELECT count(*) FROM singer"
    attempt = played(
        tmp_path,
        hand_over(),
        calls("run_query", sql=query),
        Reply("There are 3 singers."),
        Reply(f"```sql\n{query}\n```"),
        max_turns=4,
    )
    assert (attempt.outcome, attempt.answer) == ("ok", query), attempt.detail
    assert [call.role for call in attempt.transitions] == ["write_query"] * 4
    assert len(attempt.tool_calls) == 1
    assert "There are 3 singers." in str(attempt.transitions[-1].messages)


def test_max_turns_bounds_the_agent_and_its_subagents_together(tmp_path):
    endless = [calls("run_query", sql=f"SELECT {n}") for n in range(9)]
    attempt = played(tmp_path, hand_over(), *endless, max_turns=3)
    assert (attempt.outcome, attempt.answer) == ("ok", "SELECT 1"), attempt.detail
    assert len(attempt.transitions) == 3

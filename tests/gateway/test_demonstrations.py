"""Demonstrations: the model server sees them, and records have the request as the agent sent it."""

from __future__ import annotations

from typing import Any

import pytest

from harness.gateway.canonical import request_digest
from harness.mock_model.completion import prompt_token_ids
from harness.mock_model.server import Reply

from .conftest import MESSAGES, Attempt

pytestmark = pytest.mark.asyncio

SHOWN = [
    [{"role": "user", "content": "One?"}, {"role": "assistant", "content": "1"}],
    [{"role": "user", "content": "Two?"}, {"role": "assistant", "content": "2"}],
]
FLAT = [message for pair in SHOWN for message in pair]
SYSTEM, USER = MESSAGES


async def started(attempt: Attempt, scripted_server: Any, **options: Any) -> Any:
    """Open the attempt at a gateway that sends calls to a scripted server."""
    server = scripted_server(["yes"] * 3)
    await attempt.control.set_upstreams([server.base_url], model="scripted", token_ids=True)
    await attempt.open(**options)
    return server


async def test_the_server_sees_them_and_the_record_does_not(
    attempt: Attempt, scripted_server: Any
) -> None:
    server = await started(attempt, scripted_server, demonstrations={"write_query": SHOWN})
    await attempt.call("write_query")
    await attempt.call("check_query")
    (write, check), failures = await attempt.close()

    assert failures == []
    seen = [request.body["messages"] for request in server.requests]
    assert seen == [[SYSTEM, *FLAT, USER], MESSAGES]
    assert list(write.messages) == list(check.messages) == MESSAGES
    assert write.request_digest == check.request_digest
    assert write.request_digest == request_digest(MESSAGES, {"model": "scripted"})
    assert (write.demonstrations, check.demonstrations) == (2, 0)
    # The engine's own counts include them.
    assert list(write.prompt_ids) == prompt_token_ids([SYSTEM, *FLAT, USER])
    assert write.prompt_tokens > check.prompt_tokens


async def test_without_them_the_request_is_the_agents(
    attempt: Attempt, scripted_server: Any
) -> None:
    server = await started(attempt, scripted_server)
    await attempt.call()
    ((call,), _) = await attempt.close()
    assert server.requests[0].body["messages"] == MESSAGES
    assert call.demonstrations == 0


async def test_they_come_before_the_first_user_message_and_leave_a_conversation_whole(
    attempt: Attempt, scripted_server: Any
) -> None:
    function = {"name": "look", "arguments": "{}"}
    asks = {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "call-0", "type": "function", "function": function}],
    }
    result = {"role": "tool", "tool_call_id": "call-0", "content": "a table"}
    further = {"role": "user", "content": "And now?"}
    server = await started(attempt, scripted_server, demonstrations={"write_query": SHOWN})
    await attempt.call(messages=[SYSTEM, USER, asks, result])
    await attempt.call(messages=[SYSTEM, USER, asks, result, further])
    await attempt.call(messages=[SYSTEM])
    calls, failures = await attempt.close()

    assert failures == []
    first, second, third = (request.body["messages"] for request in server.requests)
    assert first == [SYSTEM, *FLAT, USER, asks, result]
    assert second == [SYSTEM, *FLAT, USER, asks, result, further]
    # There is no user message that they could precede.
    assert third == [SYSTEM]
    assert [call.demonstrations for call in calls] == [2, 2, 0]


async def test_a_prompt_that_they_make_too_long_says_so(
    attempt: Attempt, scripted_server: Any
) -> None:
    refusal = Reply.failure(400, "This model's maximum context length is 8 tokens.")
    server = scripted_server([refusal])
    await attempt.control.set_upstreams([server.base_url], model="scripted", token_ids=True)
    await attempt.open(demonstrations={"write_query": SHOWN})
    await attempt.call()
    _, (failure,) = await attempt.close()
    assert (failure.code, failure.cause) == ("prompt_too_long", "agent")
    assert failure.detail.endswith("(2 demonstrations were inserted)")


@pytest.mark.parametrize(
    "wrong",
    [
        [],
        {"write_query": {}},
        {"write_query": [SHOWN[0][:1]]},
        {"write_query": [list(reversed(SHOWN[0]))]},
        {"write_query": [["One?", "1"]]},
    ],
)
async def test_other_forms_are_refused(attempt: Attempt, wrong: Any) -> None:
    path = f"attempts/{attempt.rollout_id}/0"
    opening = {"sampling": {}, "timeout_s": 1, "roles": ["write_query"], "demonstrations": wrong}
    with pytest.raises(RuntimeError, match="demonstrations"):
        await attempt.control._send("PUT", path, opening)

"""Answers in the forms of real servers, whole and streamed: one form reaches the agent."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import pytest

from harness.mock_model.completion import Reply

from .conftest import error_code, events

pytestmark = pytest.mark.asyncio

CALL = {"name": "query", "arguments": '{"sql": "SELECT 1"}'}
WHOLE_CALL = {"id": "c1", "type": "function", "function": CALL}


def sse(*chunks: Any, end: bytes = b"data: [DONE]\n\n", line: bytes = b"\n\n") -> Reply:
    """A stream of these chunks."""
    written = (
        chunk if isinstance(chunk, bytes) else b"data: " + json.dumps(chunk).encode() + line
        for chunk in chunks
    )
    return Reply(raw=b"".join(written) + end)


def chunk(delta: dict[str, Any], reason: str | None = None, **fields: Any) -> dict[str, Any]:
    """One chunk of a stream."""
    choice = {"index": 0, "delta": delta, "finish_reason": reason}
    return {"id": "x", "object": "chat.completion.chunk", "choices": [choice], **fields}


def part(index: int | None, **fields: Any) -> dict[str, Any]:
    """A chunk with a part of a tool call."""
    numbered = {} if index is None else {"index": index}
    return chunk({"tool_calls": [{**numbered, **fields}]})


async def answers(attempt: Any, scripted_server: Any, *replies: Reply) -> tuple[Any, Any, Any]:
    """Return the responses to streamed calls, and the attempt's records."""
    server = scripted_server(list(replies), token_ids=False)
    await attempt.control.set_upstreams([server.base_url], model="scripted", token_ids=False)
    await attempt.open()
    responses = [await attempt.call(stream=True) for _ in replies]
    transitions, failures = await attempt.close()
    return responses, transitions, failures


def message(response: Any) -> tuple[str, list[Any], str]:
    """Return text, tool calls and the reason of the end of a stream, as a client puts it together."""
    text, calls, reason = "", [], ""
    ids = set()
    for event in events(response):
        if event == "[DONE]":
            continue
        ids.add(event["id"])
        for choice in event["choices"]:
            text += choice["delta"].get("content") or ""
            calls += choice["delta"].get("tool_calls") or []
            reason = choice["finish_reason"] or reason
    assert len(ids) == 1 and "" not in ids
    return text, calls, reason


@pytest.mark.parametrize("first_id", ["", None])
async def test_a_streams_first_id_that_is_none_is_passed_over(attempt, scripted_server, first_id):
    opening = {"id": first_id, "object": "", "model": "", "choices": []}
    stream = sse(opening, chunk({"role": "assistant", "content": "yes"}), chunk({}, "stop"))
    (response,), (transition,), failures = await answers(attempt, scripted_server, stream)
    assert failures == [] and message(response) == ("yes", [], "stop")
    assert transition.response_id == "x"


async def test_streams_without_ids_and_with_one_id_are_taken(attempt, scripted_server):
    bare = {"choices": [{"delta": {"content": "yes"}, "finish_reason": "stop"}]}
    same = chunk({"content": "yes"}, "stop")
    responses, transitions, failures = await answers(
        attempt, scripted_server, sse(bare), sse(bare), sse(same), sse(same)
    )
    assert failures == [] and [message(one)[0] for one in responses] == ["yes"] * 4
    assert transitions[0].response_id != transitions[1].response_id


async def test_with_exact_token_ids_an_answer_needs_an_id_of_its_own(attempt, scripted_server):
    tokens = {"token_ids": [7], "logprobs": {"content": [{"logprob": -0.5}]}}
    choice = {"message": {"content": "yes"}, "finish_reason": "stop", **tokens}
    whole = {"id": "", "prompt_token_ids": [5], "choices": [choice]}
    first = chunk({"content": "yes"}, prompt_token_ids=[5]) | {"id": None}
    first["choices"][0] |= tokens
    replies = [
        Reply(raw=json.dumps(whole).encode()),
        sse(first, chunk({}, "stop") | {"id": ""}),
        sse(chunk({}, prompt_token_ids=None) | {"choices": [], "id": ""}, first, chunk({}, "stop")),
    ]
    server = scripted_server(replies)
    await attempt.control.set_upstreams([server.base_url], model="scripted", token_ids=True)
    await attempt.open()
    assert error_code(await attempt.call()) == "bad_answer"
    assert "bad_answer" in (await attempt.call(stream=True)).text
    assert message(await attempt.call(stream=True))[0] == "yes"
    (transition,), failures = await attempt.close()
    assert len(failures) == 2 and (transition.response_id, transition.response_ids) == ("x", (7,))


STREAMED_CALLS = {
    "whole": [part(0, **WHOLE_CALL)],
    "in pieces": [
        part(0, id="c1", type="function", function={"name": "query", "arguments": ""}),
        part(0, function={"arguments": '{"sql": '}),
        part(0, function={"arguments": '"SELECT 1"}'}),
    ],
    "id, type and name repeated": [
        part(0, id="c1", type="function", function={"name": "query", "arguments": '{"sql": '}),
        part(0, id="c1", type="function", function={"name": "query", "arguments": '"SELECT 1"}'}),
    ],
    "no index": [
        part(None, id="c1", function={"name": "query", "arguments": '{"sql": '}),
        part(None, function={"arguments": '"SELECT 1"}'}),
    ],
    "arguments as an object": [
        part(0, id="c1", function={"name": "query", "arguments": {"sql": "SELECT 1"}})
    ],
    "no type": [part(0, id="c1", function=CALL)],
}


@pytest.mark.parametrize("reason", ["tool_calls", "stop"])
@pytest.mark.parametrize("form", STREAMED_CALLS)
async def test_streamed_tool_calls_reach_the_agent_in_one_form(
    attempt, scripted_server, form, reason
):
    stream = sse(chunk({"role": "assistant"}), *STREAMED_CALLS[form], chunk({}, reason))
    (response,), (transition,), failures = await answers(attempt, scripted_server, stream)
    _, (call,), ended = message(response)
    assert failures == [] and ended == transition.finish_reason == "tool_calls"
    assert json.loads(call["function"].pop("arguments")) == {"sql": "SELECT 1"}
    assert call == {"index": 0, "id": "c1", "type": "function", "function": {"name": "query"}}
    assert [one["name"] for one in transition.parsed_calls] == ["query"]


async def test_two_streamed_calls_of_one_index_are_two(attempt, scripted_server):
    other = {**WHOLE_CALL, "id": "c2"}
    nameless = {"function": CALL}
    streams = [
        sse(part(0, **WHOLE_CALL), part(0, **other), chunk({}, "stop")),
        sse(chunk({"tool_calls": [nameless, nameless]}), chunk({}, "stop")),
    ]
    responses, transitions, failures = await answers(attempt, scripted_server, *streams)
    assert failures == [] and [len(one.tool_calls) for one in transitions] == [2, 2]
    for response in responses:
        calls = message(response)[1]
        assert [call["index"] for call in calls] == [0, 1]
        assert len({call["id"] for call in calls}) == 2


@pytest.mark.parametrize(
    "stream",
    [
        sse(chunk({"content": "yes"}, "stop"), end=b""),
        sse(chunk({"content": "yes"}, "stop"), end=b"data: [DONE]"),
        sse(b": processing\n\n", chunk({"content": "yes"}, "stop")),
        sse(chunk({"content": "yes"}, "stop"), line=b"\r\n\r\n"),
        sse(chunk({"content": "yes"}, "stop", error=None)),
        Reply(raw=json.dumps({"choices": [{"message": {"content": "yes"}}]}).encode()),
    ],
    ids=["no end", "end without a line", "comment", "CRLF", "error null", "not streamed"],
)
async def test_streams_end_as_servers_end_them(attempt, scripted_server, stream):
    (response,), (transition,), failures = await answers(attempt, scripted_server, stream)
    assert failures == [] and message(response) == ("yes", [], "stop")
    assert transition.response_text == "yes"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("body", "status", "code", "cause", "words"),
    [
        ({"error": {"message": "out of memory"}}, 502, "bad_answer", "policy_server", "out of mem"),
        ({"error": "overloaded"}, 502, "bad_answer", "policy_server", "overloaded"),
        ({"object": "error", "message": "gone"}, 502, "bad_answer", "policy_server", "gone"),
        ({"detail": "Not ready"}, 502, "bad_answer", "policy_server", "Not ready"),
        (
            {"error": {"message": "x", "code": 503}},
            503,
            "upstream_status",
            "policy_server",
            "503 x",
        ),
        (
            {"error": {"message": "prompt is too long"}},
            400,
            "prompt_too_long",
            "agent",
            "prompt is too long",
        ),
    ],
)
async def test_an_error_with_status_200_is_told_in_the_servers_words(
    attempt, scripted_server, body, status, code, cause, words, stream
):
    reply = sse(body) if stream else Reply(raw=json.dumps(body).encode())
    server = scripted_server([reply])
    await attempt.control.set_upstreams([server.base_url], model="scripted", token_ids=True)
    await attempt.open()
    response = await attempt.call(stream=stream)
    transitions, (failure,) = await attempt.close()
    assert transitions == [] and response.status_code == status
    assert (failure.code, failure.cause, failure.status) == (code, cause, 200)
    assert words in failure.detail and "\n" not in failure.detail


async def test_a_rate_limit_is_waited_for_as_the_server_asks(attempt, scripted_server):
    limited = Reply.failure(429, "slow down", retry_after="0.3")
    server = scripted_server([limited, limited, "yes"])
    await attempt.control.set_upstreams([server.base_url], model="scripted", token_ids=True)
    await attempt.open()
    before = await attempt.control.stats()
    began = time.monotonic()
    response = await attempt.call()
    waited = time.monotonic() - began
    (transition,), failures = await attempt.close()
    after = await attempt.control.stats()
    assert response.status_code == 200 and failures == [] and len(server.requests) == 3
    assert waited >= 0.6 and (transition.rate_limits, transition.rate_limit_s) == (2, 0.6)
    assert after["rate_limits"] - before["rate_limits"] == 2
    assert after["rate_limit_s"] - before["rate_limit_s"] == pytest.approx(0.6)


@pytest.mark.parametrize("retry_after", ["60", "Fri, 31 Dec 2100 23:59:59 GMT"])
@pytest.mark.parametrize("status", [429, 503])
async def test_a_wait_beyond_the_deadline_ends_the_call_at_once(
    attempt, scripted_server, status, retry_after
):
    limited = Reply.failure(status, "slow down", retry_after=retry_after)
    server = scripted_server([limited, "never asked"])
    await attempt.control.set_upstreams([server.base_url], model="scripted", token_ids=True)
    await attempt.open(timeout_s=20)
    response = await attempt.call()
    transitions, (failure,) = await attempt.close()
    assert response.status_code == status and response.headers["retry-after"] == retry_after
    assert transitions == [] and len(server.requests) == 1
    assert (failure.cause, failure.status, failure.rate_limits) == ("policy_server", status, 1)


async def test_a_limit_that_no_wait_ends_is_not_waited_for(attempt, scripted_server):
    spent = Reply.failure(429, "You exceeded your current quota, please check your billing")
    server = scripted_server([spent, "never asked"])
    await attempt.control.set_upstreams([server.base_url], model="scripted", token_ids=True)
    await attempt.open()
    assert (await attempt.call()).status_code == 429 and len(server.requests) == 1


async def test_calls_at_once_all_get_through_a_limited_rate(attempt, scripted_server):
    asked: list[float] = []

    def script(request: Any) -> Reply:
        now = time.monotonic()
        recent = [at for at in asked if now - at < 0.4]
        if len(recent) >= 2:
            return Reply.failure(429, "2 requests in 0.4 s", retry_after="0.4")
        asked.append(now)
        return Reply("yes")

    server = scripted_server(script)
    await attempt.control.set_upstreams([server.base_url], model="scripted", token_ids=True)
    await attempt.open(timeout_s=60)
    responses = await asyncio.gather(*(attempt.call() for _ in range(8)))
    transitions, failures = await attempt.close()
    assert {one.status_code for one in responses} == {200} and failures == []
    assert len(transitions) == 8


LENGTHS = [
    (400, "The input (9000 tokens) is longer than the model's context length (4096 tokens)."),
    (400, "The decoder prompt (length 5000) is longer than the maximum model length of 4096."),
    (500, "The decoder prompt (length 5000) is longer than the maximum model length of 4096."),
    (400, "the request exceeds the available context size, try increasing it"),
    (400, "max_tokens must be at least 1, got -37."),
    (413, "Request body too large for gpt-4 model. Max size: 8000 tokens. tokens_limit_reached"),
    (422, "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 4096."),
    (400, "Please reduce the length of the messages or completion."),
    (400, "The input token count (9) exceeds the maximum number of tokens allowed (8)."),
]


@pytest.mark.parametrize(("status", "message_"), LENGTHS)
async def test_a_prompt_too_long_is_known_in_the_words_of_many_servers(
    attempt, scripted_server, status, message_
):
    server = scripted_server([Reply.failure(status, message_)])
    await attempt.control.set_upstreams([server.base_url], model="scripted", token_ids=True)
    await attempt.open()
    assert (await attempt.call()).status_code == status
    _, (failure,) = await attempt.close()
    assert (failure.code, failure.cause) == ("prompt_too_long", "agent")
    assert message_ in failure.detail


LONG = [{"role": "user", "content": "Wie spät ist es? " * 40}]


@pytest.mark.parametrize(("limit", "code"), [(200, "prompt_too_long"), (5, "upstream_status")])
async def test_a_prompt_too_long_in_words_that_no_one_knows_is_found_by_a_shorter_one(
    attempt, scripted_server, limit, code
):
    def script(request: Any) -> Reply:
        length = sum(len(one["content"]) for one in request.messages)
        return Reply("yes") if length <= limit else Reply.failure(400, "zu gross: exceeds 4k")

    server = scripted_server(script)
    await attempt.control.set_upstreams([server.base_url], model="scripted", token_ids=True)
    await attempt.open()
    assert (await attempt.call(messages=LONG)).status_code == 400
    _, (failure,) = await attempt.close()
    assert failure.code == code and "zu gross" in failure.detail


async def test_where_the_text_of_an_empty_reply_was_is_recorded(attempt, scripted_server):
    thought = {"content": None, "reasoning_content": "Let me think."}
    whole = {"model": "served", "choices": [{"message": thought, "finish_reason": "length"}]}
    stream = sse(chunk({"reasoning": "Let me"}), chunk({"reasoning": " think."}, "length"))
    server = scripted_server([Reply(raw=json.dumps(whole).encode()), stream], token_ids=False)
    await attempt.control.set_upstreams([server.base_url], model="scripted", token_ids=False)
    await attempt.open()
    shown = (await attempt.call()).json()["choices"][0]["message"]
    streamed = message(await attempt.call(stream=True))
    (one, other), failures = await attempt.close()
    assert failures == [] and shown == {"role": "assistant", "content": ""}
    assert streamed == ("", [], "length")
    assert (one.text_elsewhere, other.text_elsewhere) == ("reasoning_content", "reasoning")
    assert one.empty and other.empty and (one.served_model, one.model) == ("served", "scripted")


@pytest.mark.parametrize("logprobs", [None, {"content": None}, {"content": []}])
async def test_a_reply_of_no_tokens_is_one(attempt, scripted_server, logprobs):
    choice = {
        "message": {"content": ""},
        "finish_reason": "stop",
        "token_ids": [],
        "logprobs": logprobs,
    }
    whole = {"id": f"none {logprobs}", "prompt_token_ids": [5], "choices": [choice]}
    server = scripted_server([Reply(raw=json.dumps(whole).encode())])
    await attempt.control.set_upstreams([server.base_url], model="scripted", token_ids=True)
    await attempt.open()
    assert (await attempt.call()).status_code == 200
    (transition,), failures = await attempt.close()
    assert failures == [] and (transition.response_ids, transition.logprobs) == ((), ())

"""What a call leaves behind: roles, forced sampling, token ids, and that attempts stay apart."""

from __future__ import annotations

import asyncio
import dataclasses

import openai
import pytest

from harness.gateway.attempts import call_seed
from harness.mock_model.completion import END, Reply, logprob, prompt_token_ids, response_token_ids
from harness.util.tool_calls import has_unread_call

from .conftest import MESSAGES, SAMPLING, Attempt, error_code, events

pytestmark = pytest.mark.asyncio


async def test_a_transition_holds_what_the_engine_sampled(attempt, scripted_server):
    server = scripted_server(["Fünf Uhr."])
    await attempt.control.set_upstreams([server.base_url], model="scripted", token_ids=True)
    await attempt.open()
    response = await attempt.call()
    (transition,), failures = await attempt.close()

    assert failures == []
    assert transition.role == "write_query"
    assert (transition.rollout_id, transition.attempt_id) == (attempt.rollout_id, "0")
    assert transition.response_id == response.json()["id"]
    assert list(transition.messages) == MESSAGES
    assert transition.response_text == "Fünf Uhr."
    assert transition.finish_reason == "stop"
    assert list(transition.prompt_ids) == prompt_token_ids(MESSAGES)
    assert list(transition.response_ids) == response_token_ids("Fünf Uhr.")
    assert list(transition.logprobs) == [
        logprob(i, at) for at, i in enumerate(transition.response_ids)
    ]
    assert transition.prompt_tokens == len(transition.prompt_ids)
    assert transition.response_tokens == len(transition.response_ids)
    assert transition.sampling == SAMPLING
    assert 0 <= transition.gateway_s <= transition.latency_s


async def test_the_runs_sampling_wins_and_the_wish_is_recorded(attempt, scripted_server):
    server = scripted_server(["yes"])
    await attempt.control.set_upstreams([server.base_url], model="scripted", token_ids=True)
    await attempt.open(sampling={**SAMPLING, "seed": 7})
    wishes = {
        "temperature": 0.0,
        "top_p": 0.9,
        "max_completion_tokens": 5,
        "n": 3,
        "stop": ["x"],
        "seed": 1,
    }
    neutral = {"presence_penalty": 0, "frequency_penalty": 0.0, "logit_bias": None, "stream": False}
    tools = [{"type": "function", "function": {"name": "execute"}}]
    await attempt.call(model="other", **wishes, **neutral, presence_penalty_extra=1, tools=tools)

    sent = server.requests[0].body
    assert sent == {
        "model": "scripted",
        "messages": MESSAGES,
        "tools": tools,
        "stream": False,
        **SAMPLING,
        "seed": call_seed(7, "write_query", 0),
        "logprobs": True,
        "return_token_ids": True,
    }
    (transition,), _ = await attempt.close()
    assert transition.overridden == {
        "model": "other",
        "temperature": 0.0,
        "max_tokens": 5,
        "n": 3,
        "stop": ["x"],
        "seed": 1,
        "presence_penalty_extra": 1,
    }


async def test_every_call_has_a_random_stream_of_its_own(attempt, scripted_server):
    server = scripted_server(["yes", "yes", Reply.failure(500), "yes", "yes"])
    await attempt.control.set_upstreams([server.base_url], model="scripted", token_ids=True)
    await attempt.open(sampling={**SAMPLING, "seed": 7})
    for role in ("write_query", "check_query", "write_query", "write_query", "write_query"):
        await attempt.call(role)
    sent = [request.params["seed"] for request in server.requests]
    first, second, third = (call_seed(7, "write_query", draw) for draw in range(3))
    # What follows a failed call draws as that one would have: a fault of the endpoint is no other luck.
    assert sent == [first, call_seed(7, "check_query", 0), second, second, third]
    assert len(set(sent)) == 4
    transitions, _ = await attempt.close()
    assert [transition.sampling["seed"] for transition in transitions] == [
        sent[0],
        sent[1],
        sent[3],
        sent[4],
    ]


async def test_max_completion_tokens_is_another_name_of_max_tokens(attempt, scripted_server):
    server = scripted_server(["yes"])
    await attempt.control.set_upstreams([server.base_url], model="scripted", token_ids=True)
    await attempt.open()
    await attempt.call(max_completion_tokens=SAMPLING["max_tokens"])
    (transition,), _ = await attempt.close()
    assert transition.overridden == {}
    assert "max_completion_tokens" not in server.requests[0].body


async def test_the_agent_sees_neither_token_ids_nor_logprobs_that_it_did_not_ask_for(
    attempt, scripted_server
):
    server = scripted_server(["yes"] * 3)
    await attempt.control.set_upstreams([server.base_url], model="scripted", token_ids=True)
    await attempt.open()
    plain = (await attempt.call()).json()
    assert "prompt_token_ids" not in plain and "token_ids" not in plain["choices"][0]
    assert plain["choices"][0]["logprobs"] is None
    asked = (await attempt.call(logprobs=True, top_logprobs=0)).json()
    assert len(asked["choices"][0]["logprobs"]["content"]) == 4
    assert "token_ids" not in asked["choices"][0]
    streamed = events(await attempt.call(stream=True))
    assert streamed[-1] == "[DONE]"
    assert not any("token_ids" in str(event) for event in streamed)
    assert all(
        choice["logprobs"] is None for event in streamed[1:-1] for choice in event["choices"]
    )


@pytest.mark.parametrize(
    "reply", ["", "SELECT 1", "Zwölf  Uhr, 日本語\nund mehr", Reply("cut o", "length")]
)
async def test_a_streamed_transition_equals_a_whole_one(attempt, scripted_server, reply):
    server = scripted_server([reply] * 2)
    await attempt.control.set_upstreams([server.base_url], model="scripted", token_ids=True)
    await attempt.open()
    whole = await attempt.call()
    stream = events(await attempt.call(stream=True, stream_options={"include_usage": True}))
    (one, two), failures = await attempt.close()

    assert failures == []
    differing = {"index", "response_id", "started_s", "latency_s", "gateway_s"}
    # The requests differ in `stream`, and their digests with them.
    differing |= {"parameters", "request_digest"}
    first, second = (
        {k: v for k, v in dataclasses.asdict(t).items() if k not in differing} for t in (one, two)
    )
    assert first == second
    text = "".join(c["delta"].get("content") or "" for e in stream[:-1] for c in e["choices"])
    assert text == whole.json()["choices"][0]["message"]["content"]
    assert stream[-2]["usage"] == whole.json()["usage"]
    assert (END in one.response_ids) == (one.finish_reason == "stop")


async def test_tool_calls_reach_the_agent_and_their_tokens_the_transition(attempt, scripted_server):
    calls = [
        {"id": f"c{n}", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
        for n in "12"
    ]
    reply = Reply("Let me see.", finish_reason="tool_calls", tool_calls=calls)
    server = scripted_server([reply] * 2)
    await attempt.control.set_upstreams([server.base_url], model="scripted", token_ids=True)
    await attempt.open()
    tools = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}]
    conversation = [*MESSAGES, {"role": "assistant", "content": None, "tool_calls": calls}]
    messages = [
        *conversation,
        *({"role": "tool", "tool_call_id": call["id"], "content": "2"} for call in calls),
    ]
    asked = {"tools": tools, "tool_choice": "auto", "messages": messages}
    whole = (await attempt.call(**asked)).json()["choices"][0]
    streamed = [
        choice
        for event in events(await attempt.call(**asked, stream=True))[:-1]
        for choice in event["choices"]
    ]
    transitions, failures = await attempt.close()

    assert failures == []
    assert whole["message"]["tool_calls"] == calls
    assert streamed[-1]["delta"]["tool_calls"] == [
        {"index": at, **call} for at, call in enumerate(calls)
    ]
    assert whole["finish_reason"] == streamed[-1]["finish_reason"] == "tool_calls"
    for request, transition in zip(server.requests, transitions, strict=True):
        assert {name: request.body[name] for name in asked} == asked
        assert list(transition.messages) == messages and transition.finish_reason == "tool_calls"
        assert list(transition.response_ids) == response_token_ids("Let me see.", "tool_calls")
        assert transition.offered_tools == ("add",)
        assert list(transition.parsed_calls) == [{"name": "add", "arguments": '{"a": 1}'}] * 2


async def test_a_call_that_the_server_left_in_the_text_is_no_parsed_call(attempt, scripted_server):
    text = '```json\n{"name": "add", "arguments": {"a": 1}}\n```'
    server = scripted_server([text] * 2)
    await attempt.control.set_upstreams([server.base_url], model="scripted", token_ids=True)
    await attempt.open()
    tools = [{"type": "function", "function": {"name": "add"}}]
    await attempt.call(tools=tools)
    await attempt.call(tools=tools, tool_choice="none")
    (offering, forbidding), _ = await attempt.close()
    assert (offering.offered_tools, offering.parsed_calls) == (("add",), ())
    assert has_unread_call(offering) and offering.response_text == text
    assert forbidding.offered_tools == () and not has_unread_call(forbidding)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_plain_server_gets_no_field_that_it_does_not_know(attempt, scripted_server, stream):
    server = scripted_server(["yes"], token_ids=False)
    await attempt.control.set_upstreams([server.base_url], model="scripted", token_ids=False)
    await attempt.open()
    assert (await attempt.call(stream=stream, return_token_ids=True, top_k=3)).status_code == 200
    (transition,), _ = await attempt.close()
    assert set(server.requests[0].body) == {"model", "messages", "stream", *SAMPLING}
    assert transition.response_text == "yes"
    assert (transition.prompt_ids, transition.response_ids, transition.logprobs) == (
        None,
        None,
        None,
    )
    assert transition.overridden == {"return_token_ids": True, "top_k": 3}


async def test_interleaved_attempts_and_roles_never_mix(attempt, scripted_server):
    server = scripted_server(
        lambda request: Reply("re: " + request.messages[-1]["content"], delay_s=0.01)
    )
    await attempt.control.set_upstreams([server.base_url], model="scripted", token_ids=True)
    ours = [
        Attempt(attempt.gateway, attempt.control, attempt.http, attempt.rollout_id, str(i))
        for i in (1, 2)
    ]
    for one in ours:
        await one.open()

    async def say(one: Attempt, role: str, number: int) -> None:
        words = f"{one.attempt_id} {role} {number}"
        messages = [{"role": "user", "content": words}]
        response = await one.call(role, messages=messages, stream=bool(number % 2))
        assert response.status_code == 200

    await asyncio.gather(
        *(say(o, r, n) for n in range(20) for o in ours for r in ("write_query", "check_query"))
    )
    ids = set()
    for one in ours:
        transitions, failures = await one.close()
        assert failures == []
        assert [t.index for t in transitions] == list(range(40))
        for transition in transitions:
            number, role, _ = transition.messages[0]["content"].split()
            assert (number, role) == (transition.attempt_id, transition.role)
            assert transition.response_text == "re: " + transition.messages[0]["content"]
            assert list(transition.response_ids) == response_token_ids(transition.response_text)
            ids.add(transition.response_id)
    assert len(ids) == 80


async def test_the_openai_client_works_through_it(attempt, scripted_server):
    server = scripted_server(["yes", "no more"])
    await attempt.control.set_upstreams([server.base_url], model="scripted", token_ids=True)
    await attempt.open()
    async with openai.AsyncOpenAI(
        base_url=attempt.url(), api_key=attempt.gateway.key, max_retries=0
    ) as client:
        assert [model.id async for model in client.models.list()] == ["scripted"]
        completion = await client.chat.completions.create(model="scripted", messages=MESSAGES)
        assert completion.choices[0].message.content == "yes"
        stream = await client.chat.completions.create(
            model="scripted", messages=MESSAGES, stream=True
        )
        words = [chunk.choices[0].delta.content or "" async for chunk in stream]
        assert "".join(words) == "no more"
    transitions, _ = await attempt.close()
    assert [transition.response_text for transition in transitions] == ["yes", "no more"]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_response_id_that_comes_again_is_refused(attempt, scripted_server, stream):
    used = f"chatcmpl-reused-{stream}"
    server = scripted_server([Reply("mine", response_id=used), Reply("whose?", response_id=used)])
    await attempt.control.set_upstreams([server.base_url], model="scripted", token_ids=True)
    await attempt.open()
    assert (await attempt.call(stream=stream)).status_code == 200
    refused = await attempt.call(stream=stream)
    assert (refused.status_code, error_code(refused)) == (502, "duplicate_response_id")
    transitions, (failure,) = await attempt.close()
    assert [transition.response_text for transition in transitions] == ["mine"]
    assert failure.detail.startswith("duplicate_response_id: ")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("missing", "code"),
    [
        ("token_ids", "no_token_ids"),
        ("prompt_token_ids", "no_token_ids"),
        ("logprobs", "no_token_ids"),
        ("one_logprob", "token_count_mismatch"),
    ],
)
async def test_an_answer_without_matching_token_ids_is_refused(
    attempt, scripted_server, missing, code, stream
):
    server = scripted_server([Reply("yes", without=frozenset({missing}))])
    await attempt.control.set_upstreams([server.base_url], model="scripted", token_ids=True)
    await attempt.open()
    response = await attempt.call(stream=stream)
    transitions, (failure,) = await attempt.close()
    assert transitions == []
    assert failure.detail.startswith(f"{code}: ")
    assert failure.status == 200
    if response.status_code == 200:
        assert events(response)[-1]["error"]["code"] == code
    else:
        assert (response.status_code, error_code(response)) == (502, code)


async def test_a_tool_call_without_arguments_reaches_every_agent_in_one_form(
    attempt, scripted_server
):
    call = {"id": "c1", "type": "function", "function": {"name": "now", "arguments": ""}}
    reply = Reply("", finish_reason="tool_calls", tool_calls=[call])
    server = scripted_server([reply] * 2)
    await attempt.control.set_upstreams([server.base_url], model="scripted", token_ids=True)
    await attempt.open()
    whole = (await attempt.call()).json()["choices"][0]["message"]
    stream = events(await attempt.call(stream=True))
    transitions, failures = await attempt.close()

    assert failures == []
    assert whole["tool_calls"][0]["function"] == {"name": "now", "arguments": "{}"}
    parts = [
        part["function"].get("arguments") or ""
        for event in stream[:-1]
        for choice in event["choices"]
        for part in choice["delta"].get("tool_calls") or ()
    ]
    assert "".join(parts) == "{}"
    assert [dict(one.parsed_calls[0]) for one in transitions] == [
        {"name": "now", "arguments": "{}"}
    ] * 2

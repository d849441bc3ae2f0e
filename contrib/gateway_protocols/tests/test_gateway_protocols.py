"""Agents that speak no chat completions, by the clients that people use: the policy is asked the same."""

from __future__ import annotations

import itertools
import json
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import anthropic
import httpx
import openai
import pytest
import pytest_asyncio
from agents import (
    Agent,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    RunConfig,
    Runner,
    function_tool,
)
from anthropic import AsyncAnthropic
from anthropic.types import TextBlock, ToolUseBlock

from harness import plugins
from harness.contracts.toolbox import Toolbox
from harness.gateway.client import GatewayControl
from harness.gateway.protocols import Written
from harness.gateway.server import GatewayServer
from harness.mock_model.completion import Reply
from harness.mock_model.server import ScriptedServer
from harness.parity.comparison import compare
from harness.parity.recorder import record
from harness.records import Problem
from harness_gateway_protocols.messages import Messages
from harness_gateway_protocols.responses import Responses

ODD = ' {"sql" : "SELECT \\u0027ü\\u0027"}'
"""Arguments whose spelling a parser loses."""
CALL = {"id": "call_1", "type": "function", "function": {"name": "query", "arguments": ODD}}
REPLIES = (Reply("Let me look.", finish_reason="tool_calls", tool_calls=[CALL]), Reply("Drei 👍."))
SYSTEM, QUESTION, RESULT = "Be brief.", "Wie viele?", "3"
PARAMETERS = {"type": "object", "properties": {"sql": {"type": "string"}}, "required": ["sql"]}
TOOL = {"name": "query", "description": "Run a query.", "parameters": PARAMETERS}
CHAT = [
    {"role": "system", "content": SYSTEM},
    {"role": "user", "content": QUESTION},
    {"role": "assistant", "content": "Let me look.", "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "call_1", "content": RESULT},
]


SAMPLING = {"temperature": 0.7, "top_p": 0.9, "max_tokens": 64}


_numbers = itertools.count()


@dataclass
class Attempt:
    gateway: GatewayServer
    control: GatewayControl
    http: httpx.AsyncClient
    name: str = ""

    @property
    def url(self) -> str:
        return self.gateway.agent_url(self.name, "0", "assistant")

    async def open(self, server: ScriptedServer) -> Attempt:
        await self.control.set_upstreams([server.base_url], model="scripted", token_ids=True)
        self.name = f"rollout-{next(_numbers)}"
        await self.control.open_attempt(
            self.name, "0", sampling=SAMPLING, timeout_s=30, roles=["assistant"]
        )
        return self

    async def close(self) -> Any:
        return await self.control.close_attempt(self.name, "0")


@pytest.fixture(scope="module")
def gateway() -> Iterator[GatewayServer]:
    with GatewayServer() as server:
        yield server


@pytest_asyncio.fixture
async def attempt(gateway: GatewayServer) -> AsyncIterator[Attempt]:
    async with gateway.control() as control, httpx.AsyncClient(timeout=20) as http:
        yield Attempt(gateway, control, http)


async def _responses(attempt: Attempt, stream: bool) -> Sequence[str]:
    client = openai.AsyncOpenAI(
        base_url=attempt.url, api_key=attempt.gateway.key, http_client=attempt.http, max_retries=0
    )
    items: list[Any] = [{"role": "user", "content": QUESTION}]
    texts = []
    for _ in range(2):
        more: dict[str, Any] = {
            "instructions": SYSTEM,
            "tools": [{"type": "function", "strict": False, **TOOL}],
        }
        response = await client.responses.create(
            model="scripted", input=items, stream=stream, temperature=0.1, **more
        )
        if stream:
            pieces, done = [], None
            async for event in response:
                if event.type == "response.output_text.delta":
                    pieces.append(event.delta)
                if event.type == "response.completed":
                    done = event.response
            assert done is not None and "".join(pieces) == done.output_text
            response = done
        texts.append(response.output_text)
        items += [item.model_dump(exclude_unset=True) for item in response.output]
        items += [
            {"type": "function_call_output", "call_id": item.call_id, "output": RESULT}
            for item in response.output
            if item.type == "function_call"
        ]
    return texts


async def _messages(attempt: Attempt, stream: bool) -> Sequence[str]:
    url = attempt.url.removesuffix("/v1")
    client = AsyncAnthropic(base_url=url, api_key=attempt.gateway.key, max_retries=0)
    messages: list[Any] = [{"role": "user", "content": QUESTION}]
    tool: Any = {"name": "query", "description": "Run a query.", "input_schema": PARAMETERS}
    asked: dict[str, Any] = {
        "model": "scripted",
        "max_tokens": 9,
        "system": SYSTEM,
        "tools": [tool],
    }
    asked["extra_body"] = {"temperature": 0.1}
    texts = []
    for _ in range(2):
        if stream:
            async with client.messages.stream(messages=messages, **asked) as events:
                response = await events.get_final_message()
        else:
            response = await client.messages.create(messages=messages, **asked)
        texts.append(
            "".join(block.text for block in response.content if isinstance(block, TextBlock))
        )
        calls = [block for block in response.content if isinstance(block, ToolUseBlock)]
        messages.append(
            {
                "role": "assistant",
                "content": [block.model_dump(exclude_unset=True) for block in response.content],
            }
        )
        messages.append(
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": call.id, "content": RESULT}
                    for call in calls
                ],
            }
        )
    return texts


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("speak", [_responses, _messages])
async def test_clients_get_the_answer_and_the_policy_the_chat_completion(
    attempt: Attempt, speak: Any, stream: bool
) -> None:
    with ScriptedServer(REPLIES) as server:
        opened = await attempt.open(server)
        assert await speak(opened, stream) == ["Let me look.", "Drei 👍."]
        transitions, failures = await opened.close()
    assert not failures
    asked = [request.body for request in server.requests]
    assert asked[0]["messages"] == CHAT[:2] and asked[1]["messages"] == CHAT
    for body, transition in zip(asked, transitions, strict=True):
        assert body["tools"] == [{"type": "function", "function": TOOL}]
        assert {name: body[name] for name in SAMPLING} == SAMPLING and not body.get("stream")
        assert transition.overridden["temperature"] == 0.1
        assert list(transition.messages) == body["messages"]
        assert transition.response_ids and len(transition.response_ids) == len(
            transition.logprobs or ()
        )
    # Nothing of the calls tells which of them was streamed, or in which protocol it came.
    assert [transition.response_text for transition in transitions] == ["Let me look.", "Drei 👍."]


async def test_a_framework_asks_the_policy_the_same_in_either_protocol(attempt: Attempt) -> None:
    @function_tool
    async def query(sql: str) -> str:
        """Run a query."""
        return RESULT

    seen = []
    for model in (OpenAIChatCompletionsModel, OpenAIResponsesModel):
        with ScriptedServer(REPLIES) as server:
            opened = await attempt.open(server)
            client = openai.AsyncOpenAI(
                base_url=opened.url,
                api_key=opened.gateway.key,
                http_client=opened.http,
                max_retries=0,
            )
            agent = Agent(
                name="agent",
                instructions=SYSTEM,
                model=model("scripted", client),
                model_settings=ModelSettings(temperature=0.7),
                tools=[query],
            )
            run = await Runner.run(agent, QUESTION, run_config=RunConfig(tracing_disabled=True))
            assert run.final_output == "Drei 👍."
            await opened.close()
        seen.append(
            [
                {name: request.body[name] for name in ("messages", "tools")}
                for request in server.requests
            ]
        )
    assert seen[0] == seen[1]


async def test_what_claude_code_adds_is_no_part_of_the_conversation(attempt: Attempt) -> None:
    marked = {"cache_control": {"type": "ephemeral"}}
    system = [
        {"type": "text", "text": "You are an agent.", **marked},
        {"type": "text", "text": SYSTEM, **marked},
    ]
    shown = {"name": "query", "description": "Run a query.", "input_schema": PARAMETERS}
    hidden = {
        "name": "DeferredToolPlaceholder",
        "input_schema": {"type": "object"},
        "defer_loading": True,
    }
    wishes = {
        "thinking": {"type": "adaptive", "display": "updates"},
        "output_config": {"effort": "high"},
    }
    conversation = [
        {"role": "user", "content": QUESTION},
        {"role": "system", "content": [{"type": "text", "text": "Note."}]},
    ]
    body = {
        "model": "scripted",
        "max_tokens": 64,
        "stream": True,
        "metadata": {"user_id": "{}"},
        "messages": conversation,
    }
    with ScriptedServer(["Drei.", "Vier."]) as server:
        opened = await attempt.open(server)
        for tools in ([hidden, shown], [hidden]):
            answer = await opened.http.post(
                f"{opened.url}/messages?beta=true",
                json={**body, "system": system, "tools": tools, **wishes},
                headers={
                    "authorization": f"Bearer {opened.gateway.key}",
                    "anthropic-beta": "effort-2025-11-24",
                },
            )
            assert answer.status_code == 200, answer.text
        transitions, failures = await opened.close()
    assert not failures and [transition.overridden for transition in transitions] == [
        wishes,
        wishes,
    ]
    one, other = (request.body for request in server.requests)
    assert [message["content"] for message in one["messages"]] == [
        f"You are an agent.\n{SYSTEM}",
        QUESTION,
        "Note.",
    ]
    assert one["tools"] == [{"type": "function", "function": TOOL}] and "tools" not in other


async def test_a_tool_in_a_namespace_has_it_as_a_prefix_for_the_policy(attempt: Attempt) -> None:
    made = {"name": "mcp__tools__query", "arguments": ODD}
    reply = Reply(
        finish_reason="tool_calls",
        tool_calls=[{"id": "call_1", "type": "function", "function": made}],
    )
    space = {"type": "namespace", "name": "mcp__tools", "tools": [{"type": "function", **TOOL}]}
    items: list[Any] = [{"role": "user", "content": QUESTION}]
    with ScriptedServer([reply, Reply("3")]) as server:
        opened = await attempt.open(server)
        for _ in range(2):
            answer = await opened.http.post(
                f"{opened.url}/responses",
                json={"model": "scripted", "input": items, "tools": [space]},
                headers={"x-api-key": opened.gateway.key},
            )
            output = answer.raise_for_status().json()["output"]
            items += [*output, {"type": "function_call_output", "call_id": "call_1", "output": "3"}]
        transitions, _ = await opened.close()
    call = items[1]
    assert (call["namespace"], call["name"]) == ("mcp__tools", "query")
    assert [one.offered_tools for one in transitions] == [("mcp__tools__query",)] * 2
    first, second = server.requests
    assert first.body["tools"][0]["function"]["name"] == "mcp__tools__query"
    assert second.messages[1]["tool_calls"][0]["function"] == made


@pytest.mark.parametrize(
    ("path", "body", "named"),
    [
        ("responses", {"input": "x", "previous_response_id": "resp_1"}, "previous_response_id"),
        (
            "responses",
            {"input": [{"role": "user", "content": [{"type": "input_image"}]}]},
            "input_image",
        ),
        ("responses", {"input": [{"type": "reasoning", "summary": []}]}, "reasoning"),
        ("responses", {"input": "x", "tools": [{"type": "web_search"}]}, "web_search"),
        ("responses", {}, "input"),
        ("responses", {"input": 3}, "int"),
        ("messages", {"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "image"),
        ("messages", {"messages": "x"}, "string indices"),
        ("messages", {"messages": [], "thinking": {"type": "enabled"}}, "thinking"),
        (
            "messages",
            {"messages": [], "tools": [{"type": "bash_20250124", "name": "bash"}]},
            "bash_20250124",
        ),
        (
            "messages",
            {"messages": [{"role": "user", "content": [{"type": "tool_reference"}]}]},
            "tool_reference",
        ),
        (
            "messages",
            {
                "messages": [
                    {
                        "role": "user",
                        "content": [
                            {"type": "text", "text": "Look:"},
                            {"type": "tool_result", "tool_use_id": "c1", "content": "3"},
                        ],
                    }
                ]
            },
            "text before a tool_result",
        ),
    ],
)
async def test_what_chat_completions_cannot_say_is_the_agents_bad_request(
    attempt: Attempt, path: str, body: dict[str, Any], named: str
) -> None:
    with ScriptedServer(["never asked"]) as server:
        opened = await attempt.open(server)
        headers = {"x-api-key": opened.gateway.key}
        answer = await opened.http.post(
            f"{opened.url}/{path}", json={"model": "scripted", **body}, headers=headers
        )
        _, failures = await opened.close()
    error = answer.json()["error"]
    assert (
        answer.status_code == 400 and named in error["message"] and error["code"] == "bad_request"
    )
    assert path == "responses" or error["type"] == "invalid_request_error"
    assert [(failure.code, failure.cause) for failure in failures] == [("bad_request", "agent")]
    assert not server.requests


async def test_an_error_of_a_tool_is_kept_and_text_after_results_stays_there(
    attempt: Attempt,
) -> None:
    def result(call_id: str, text: str, **more: Any) -> dict[str, Any]:
        return {"type": "tool_result", "tool_use_id": call_id, "content": text, **more}

    blocks = [
        result("c1", "no such table: x", is_error=True),
        result("c2", "Error: no such column", is_error=True),
        result("c3", "3", is_error=False),
        {"type": "text", "text": "Go on."},
    ]
    with ScriptedServer(["Drei."]) as server:
        opened = await attempt.open(server)
        answer = await opened.http.post(
            f"{opened.url}/messages",
            json={"model": "scripted", "messages": [{"role": "user", "content": blocks}]},
            headers={"x-api-key": opened.gateway.key},
        )
        assert answer.status_code == 200, answer.text
    assert [message["content"] for message in server.requests[0].messages] == [
        "Error: no such table: x",
        "Error: no such column",
        "3",
        "Go on.",
    ]


@pytest.mark.parametrize("call_id", [None, "", "left out"])
@pytest.mark.parametrize(("path", "asked"), [("messages", "messages"), ("responses", "input")])
async def test_a_tool_call_without_an_id_reaches_clients_of_other_protocols_with_one(
    attempt: Attempt, path: str, asked: str, call_id: str | None
) -> None:
    call: dict[str, Any] = {"id": call_id, "function": {"name": "query", "arguments": {"sql": "x"}}}
    if call_id == "left out":
        del call["id"]
    with ScriptedServer([Reply("", finish_reason="stop", tool_calls=[call])]) as server:
        opened = await attempt.open(server)
        answer = await opened.http.post(
            f"{opened.url}/{path}",
            json={"model": "scripted", asked: [{"role": "user", "content": QUESTION}]},
            headers={"x-api-key": opened.gateway.key},
        )
        (transition,), failures = await opened.close()
    assert answer.status_code == 200 and not failures
    (made,) = transition.tool_calls
    shown = answer.json()["output" if path == "responses" else "content"][0]
    assert made["id"] and made["id"] in (shown.get("call_id"), shown["id"])


async def test_errors_keep_their_status_and_have_the_clients_form(attempt: Attempt) -> None:
    with ScriptedServer(
        [Reply.failure(429, "slow down", retry_after="60"), Reply.failure(503, "away")]
    ) as server:
        opened = await attempt.open(server)
        with pytest.raises(openai.RateLimitError, match="slow down"):
            await _responses(opened, stream=True)
        with pytest.raises(anthropic.APIStatusError, match="away"):
            await _messages(opened, stream=True)


async def test_the_key_is_asked_for_in_every_protocol(attempt: Attempt) -> None:
    with ScriptedServer(["x"]) as server:
        opened = await attempt.open(server)
        for path in ("responses", "messages"):
            for headers in ({}, {"x-api-key": "guess"}, {"x-api-key": opened.gateway.control_key}):
                answer = await opened.http.post(f"{opened.url}/{path}", json={}, headers=headers)
                assert answer.status_code == 401
        answer = await opened.http.post(
            f"{opened.url}/embeddings", json={}, headers={"x-api-key": opened.gateway.key}
        )
        assert answer.status_code == 404


@pytest.mark.parametrize(
    "arguments", [ODD, "{", "[1]", '"text"', "", '{"a": ' + "[" * 300 + "]" * 300 + "}"]
)
def test_arguments_come_back_as_the_policy_wrote_them(arguments: str) -> None:
    call = {**CALL, "function": {"name": "query", "arguments": arguments}}
    completion = {
        "id": "c",
        "choices": [
            {"message": {"content": None, "tool_calls": [call]}, "finish_reason": "tool_calls"}
        ],
    }
    written = Written()
    written.note([call])
    shown = Messages().reply({}, completion)["content"]
    again = Messages().asked(
        {"messages": [{"role": "assistant", "content": json.loads(json.dumps(shown))}]}, written
    )
    assert again["messages"] == [{"role": "assistant", "content": None, "tool_calls": [call]}]
    items = Responses().reply({}, completion)["output"]
    assert Responses().asked({"input": items}, Written())["messages"] == again["messages"]


def test_whole_answers_validate_as_the_clients_own_types() -> None:
    from anthropic.types import Message
    from openai.types.responses import Response

    for finish, cut in (("stop", False), ("length", True), ("tool_calls", False)):
        message = {"content": "x", "tool_calls": [CALL] if finish == "tool_calls" else None}
        completion = {
            "id": "c",
            "created": 1,
            "model": "m",
            "choices": [{"message": message, "finish_reason": finish}],
        }
        response = Response.model_validate(
            Responses().reply({"input": "x"}, completion), strict=True
        )
        assert (response.incomplete_details is not None) is cut
        answer = Message.model_validate(Messages().reply({}, completion), strict=True)
        assert (
            answer.stop_reason
            == {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}[finish]
        )


class InProtocol:
    """The reference's tool loop in a protocol, over plain HTTP."""

    roles = ("assistant",)

    def __init__(self, speak: Any) -> None:
        self._speak = speak

    async def solve(self, problem: Problem, toolbox: Toolbox) -> str:
        llm = toolbox.llm("assistant")
        system, user = (message["content"] for message in toolbox.prompts.messages(problem))
        turns: list[Any] = [{"role": "user", "content": user}]
        text = ""
        for turn in range(toolbox.max_turns + 1):
            path, body = self._speak.request(
                system, turns, [tool.definition["function"] for tool in toolbox.tools]
            )
            headers = {"x-api-key": llm.api_key}
            answer = await toolbox.http_client.post(
                f"{llm.base_url}/{path}",
                json={"model": llm.model, **llm.sampling, **body},
                headers=headers,
            )
            text, calls, reply = self._speak.read(answer.raise_for_status().json())
            if not calls or turn == toolbox.max_turns:
                break
            turns += reply
            results = [
                (call_id, await toolbox.call(name, arguments)) for call_id, name, arguments in calls
            ]
            turns += self._speak.results(results)
        return text.strip()


class SpeakResponses:
    def request(self, system: str, turns: list[Any], tools: list[Any]) -> tuple[str, Any]:
        offered = [{"type": "function", **tool} for tool in tools]
        return "responses", {"instructions": system, "input": turns, "tools": offered}

    def read(self, answer: Any) -> tuple[str, list[Any], list[Any]]:
        items = answer["output"]
        calls = [
            (i["call_id"], i["name"], i["arguments"]) for i in items if i["type"] == "function_call"
        ]
        return (
            "".join(i["content"][0]["text"] for i in items if i["type"] == "message"),
            calls,
            items,
        )

    def results(self, results: list[tuple[str, str]]) -> list[Any]:
        return [
            {"type": "function_call_output", "call_id": call_id, "output": text}
            for call_id, text in results
        ]


class SpeakMessages:
    def request(self, system: str, turns: list[Any], tools: list[Any]) -> tuple[str, Any]:
        offered = [
            {"name": t["name"], "description": t["description"], "input_schema": t["parameters"]}
            for t in tools
        ]
        return "messages", {"system": system, "messages": turns, "tools": offered}

    def read(self, answer: Any) -> tuple[str, list[Any], list[Any]]:
        blocks = answer["content"]
        calls = [(b["id"], b["name"], _text(b["input"])) for b in blocks if b["type"] == "tool_use"]
        text = "".join(b["text"] for b in blocks if b["type"] == "text")
        return text, calls, [{"role": "assistant", "content": blocks}]

    def results(self, results: list[tuple[str, str]]) -> list[Any]:
        blocks = [
            {"type": "tool_result", "tool_use_id": call_id, "content": text}
            for call_id, text in results
        ]
        return [{"role": "user", "content": blocks}]


def _text(arguments: dict[str, Any]) -> str:
    """A client of this protocol has objects; where the policy wrote none, the gateway shows its text under no name."""
    return (
        str(arguments[""])
        if arguments.keys() == {""}
        else json.dumps(arguments, ensure_ascii=False)
    )


@pytest.mark.slow
@pytest.mark.parametrize("speak", [SpeakResponses(), SpeakMessages()])
async def test_an_agent_in_a_protocol_is_certified_as_any_other(speak: Any) -> None:
    reference = plugins.load(plugins.agent_spec("reference_tools"))()
    scenarios = [one for one in plugins.program("tool_loop").scenarios if not one.hangs]
    expected = await record(reference, "tool_loop", scenarios)
    found = await record(InProtocol(speak), "tool_loop", scenarios)
    compared = compare("in a protocol", found, expected)
    assert compared.passed, [str(mismatch) for mismatch in compared.mismatches]
    assert compared.calls_compared == sum(len(one.calls) for one in expected if one.play == "alone")

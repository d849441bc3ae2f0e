"""The scripted model server: what it says, what it refuses, what it remembers."""

from __future__ import annotations

import json
import subprocess
import sys
import threading

import httpx
import orjson
import pytest

from harness.mock_model.completion import END, Reply, logprob, prompt_token_ids, response_token_ids
from harness.mock_model.server import ReceivedRequest, ScriptedServer
from harness.records import Problem
from harness_sql.self_correcting.prompts import PROMPTS

MESSAGES = [{"role": "user", "content": "hello"}]


def ask(server: ScriptedServer, **params: object) -> httpx.Response:
    body = {"model": "scripted", "messages": MESSAGES, **params}
    return httpx.post(server.base_url + "/chat/completions", json=body, timeout=10)


def text(response: httpx.Response) -> str:
    return str(response.json()["choices"][0]["message"]["content"])


def chunks(response: httpx.Response) -> list[dict]:
    data = [line[6:] for line in response.text.splitlines() if line]
    assert data.pop() == "[DONE]"
    return [orjson.loads(item) for item in data]


def test_a_list_is_said_in_order_and_then_runs_out(scripted_server):
    server = scripted_server(["one", "two"])
    assert [text(ask(server)), text(ask(server))] == ["one", "two"]
    exhausted = ask(server)
    assert exhausted.status_code == 500
    assert "2 replies and no more" in exhausted.json()["error"]["message"]


def test_a_function_sees_the_whole_request(scripted_server):
    def script(request: ReceivedRequest) -> str:
        return f"{request.index} {request.turn} {request.path} {request.params} {request.messages[0]['content']}"

    server = scripted_server(script)
    assert (
        text(ask(server, temperature=0.5)) == "0 0 /v1/chat/completions {'temperature': 0.5} hello"
    )
    assert text(ask(server)).startswith("1 1 ")
    assert text(ask(server, messages=[{"role": "user", "content": "another"}])).startswith("2 0 ")
    (first, *_) = server.requests
    assert json.loads(first.raw) == first.body
    assert first.headers["content-type"] == "application/json"


def test_the_roles_of_one_rollout_are_one_conversation(scripted_server):
    server = scripted_server(lambda request: str(request.turn))
    problem = Problem("t1", "How many?", {"schema": "CREATE TABLE t(a)"})
    prompts = (
        PROMPTS.write(problem),
        PROMPTS.check(problem, "SELECT 1", "1"),
        PROMPTS.rewrite(problem, "SELECT 1", "1", "no"),
    )
    assert [text(ask(server, messages=prompt.messages)) for prompt in prompts] == ["0", "1", "2"]


def test_token_ids_are_the_bytes_and_an_end(scripted_server):
    server = scripted_server(["né", Reply("né", finish_reason="length"), "né"])
    whole = ask(server, return_token_ids=True, logprobs=True).json()
    (choice,) = whole["choices"]
    assert whole["prompt_token_ids"] == prompt_token_ids(MESSAGES)
    assert choice["token_ids"] == [*"né".encode(), END] == response_token_ids("né")
    given = [item["logprob"] for item in choice["logprobs"]["content"]]
    assert given == [logprob(token_id, at) for at, token_id in enumerate(choice["token_ids"])]
    assert whole["usage"]["completion_tokens"] == 4
    truncated = ask(server, return_token_ids=True).json()["choices"][0]
    assert (truncated["finish_reason"], truncated["token_ids"]) == ("length", [*"né".encode()])
    unasked = ask(server).json()
    assert "prompt_token_ids" not in unasked and "token_ids" not in unasked["choices"][0]


@pytest.mark.parametrize("message", ["", "a", "two  spaces and ünïcode\n\nlines "])
def test_a_stream_says_the_same_as_a_whole_reply(scripted_server, message):
    server = scripted_server([message] * 2)
    asked = {"return_token_ids": True, "logprobs": True}
    whole = ask(server, **asked).json()
    stream = chunks(ask(server, **asked, stream=True, stream_options={"include_usage": True}))
    choices = [choice for chunk in stream for choice in chunk["choices"]]
    assert stream[0]["prompt_token_ids"] == whole["prompt_token_ids"]
    assert len({chunk["id"] for chunk in stream}) == 1
    assert "".join(choice["delta"].get("content", "") for choice in choices) == message
    token_ids = [token_id for choice in choices for token_id in choice.get("token_ids") or []]
    assert token_ids == whole["choices"][0]["token_ids"]
    logprobs = [
        item for choice in choices for item in (choice["logprobs"] or {}).get("content", [])
    ]
    assert logprobs == whole["choices"][0]["logprobs"]["content"]
    assert stream[-1]["usage"] == whole["usage"]


def test_a_plain_server_refuses_what_it_does_not_know(scripted_server):
    server = scripted_server(["one"], token_ids=False)
    refused = ask(server, return_token_ids=True)
    assert refused.status_code == 400
    assert "return_token_ids" in refused.json()["error"]["message"]
    assert (
        ask(server, temperature=0, max_completion_tokens=5, stop="x").status_code == 500
    )  # script used up
    assert len(server.requests) == 2


def test_a_wrong_model_is_404(scripted_server):
    server = scripted_server(["one"])
    assert ask(server, model="gpt").status_code == 404
    assert httpx.get(server.base_url + "/models").json()["data"][0]["id"] == "scripted"


def test_faults(scripted_server):
    server = scripted_server(
        [
            Reply.failure(429, "slow down", retry_after="3"),
            Reply("gone", drop="before"),
            Reply("half of it", drop="midway"),
            Reply("half of it", drop="midway"),
            Reply("", finish_reason="length"),
            Reply(raw=b"nonsense"),
            Reply("late", delay_s=0.2),
        ]
    )
    limited = ask(server)
    assert (limited.status_code, limited.headers["retry-after"]) == (429, "3")
    for params in ({}, {}, {"stream": True}):
        with pytest.raises(httpx.TransportError):
            ask(server, **params)
    empty = ask(server).json()["choices"][0]
    assert (empty["message"]["content"], empty["finish_reason"]) == ("", "length")
    assert ask(server).content == b"nonsense"
    late = ask(server)
    assert late.elapsed.total_seconds() >= 0.2 and text(late) == "late"


def test_a_caller_that_hangs_up_is_noticed(scripted_server):
    server = scripted_server([Reply(hang=True)])
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(
            server.base_url + "/chat/completions",
            json={"model": "scripted", "messages": MESSAGES},
            timeout=0.2,
        )
    assert server.requests[0].aborted.wait(5)


def test_waiting_for_requests(scripted_server):
    server = scripted_server(["one"])
    caller = threading.Timer(0.1, ask, [server])
    caller.start()
    assert server.wait_for_requests(1)[0].messages == MESSAGES
    caller.join()
    with pytest.raises(TimeoutError, match="1 of 2"):
        server.wait_for_requests(2, timeout_s=0.05)


def test_it_stops_although_a_call_hangs():
    server = ScriptedServer([Reply(hang=True)]).start()
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(
            server.base_url + "/chat/completions",
            json={"model": "scripted", "messages": MESSAGES},
            timeout=0.1,
        )
    server.stop()
    with pytest.raises(httpx.ConnectError):
        ask(server)


def test_in_a_process_of_its_own():
    command = [sys.executable, "-m", "harness.mock_model.server", "--reply", "from afar", "--plain"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        port = json.loads(process.stdout.readline())["port"]
        url = f"http://127.0.0.1:{port}/v1/chat/completions"
        assert (
            text(httpx.post(url, json={"model": "scripted", "messages": MESSAGES})) == "from afar"
        )
    finally:
        process.terminate()
        process.wait()
        process.stdout.close()

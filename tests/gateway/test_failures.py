"""What goes wrong: keys, unknown names, upstream faults, limits, hang-ups. Each typed, each recorded once."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import subprocess
import sys
import time

import httpx
import pytest

from harness.errors import EndpointError, EnvironmentProblem
from harness.gateway.attempts import AttemptLog
from harness.gateway.client import GatewayControl
from harness.gateway.server import GatewayServer
from harness.mock_model.completion import Reply

from .conftest import MESSAGES, Attempt, error_code, events

pytestmark = pytest.mark.asyncio


async def wait_until(true, timeout_s=5.0):
    deadline = time.monotonic() + timeout_s
    while not await true():
        assert time.monotonic() < deadline, "did not happen in time"
        await asyncio.sleep(0.01)


async def test_a_key_in_the_url_opens_the_agents_door_alone(attempt, scripted_server):
    server = scripted_server(["yes"])
    await attempt.control.set_upstreams([server.base_url], model="scripted", token_ids=True)
    await attempt.open()
    gateway = attempt.gateway

    def url_with(key: str, url: str) -> str:
        return url.replace("://", f"://:{key}@")

    models, stats = attempt.url() + "/models", gateway.base_url + "/control/stats"
    assert (await attempt.http.get(url_with(gateway.key, models))).status_code == 200
    for url in (url_with(gateway.control_key, models), url_with(gateway.key, stats)):
        response = await attempt.http.get(url)
        assert (response.status_code, error_code(response)) == (401, "unauthorized")
    refused = await attempt.http.get(models, headers={"authorization": "Basic not base64"})
    assert (refused.status_code, error_code(refused)) == (401, "unauthorized")


async def test_neither_key_opens_the_other_door(attempt, scripted_server):
    server = scripted_server(["yes"])
    await attempt.control.set_upstreams([server.base_url], model="scripted", token_ids=True)
    await attempt.open()
    gateway = attempt.gateway
    models, stats = attempt.url() + "/models", gateway.base_url + "/control/stats"
    for key, url in ((gateway.control_key, models), (gateway.key, stats), ("sk-guess", stats)):
        response = await attempt.http.get(url, headers={"authorization": f"Bearer {key}"})
        assert (response.status_code, error_code(response)) == (401, "unauthorized")
    assert (await attempt.http.get(gateway.base_url + "/health")).status_code == 200
    assert server.requests == []


async def test_unknown_attempt_role_and_route_are_404(attempt):
    unknown = await attempt.call()
    assert (unknown.status_code, error_code(unknown)) == (404, "unknown_attempt")
    await attempt.open()
    role = await attempt.call("write_query_6d1f")
    assert (role.status_code, error_code(role)) == (404, "unknown_role")
    route = await attempt.http.get(attempt.gateway.base_url + "/v1/models")
    assert (route.status_code, error_code(route)) == (404, "not_found")
    assert await attempt.close() == ([], [])


async def test_a_bad_request_is_400(attempt):
    await attempt.open()
    assert error_code(await attempt.call(messages="hello")) == "bad_request"
    headers = {"authorization": f"Bearer {attempt.gateway.key}"}
    url = attempt.url() + "/chat/completions"
    assert error_code(await attempt.http.post(url, content=b"{", headers=headers)) == "bad_request"


def nested(levels: int) -> str:
    """A request whose tools stand `levels` deep in it."""
    return (
        '{"messages": [{"role": "user", "content": "hi"}], "tools": '
        + "[" * (levels - 1)
        + "]" * (levels - 1)
        + "}"
    )


async def post(attempt: Attempt, body: str | bytes) -> httpx.Response:
    headers = {"authorization": f"Bearer {attempt.gateway.key}"}
    return await attempt.http.post(
        attempt.url() + "/chat/completions", content=body, headers=headers
    )


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (nested(101), "more than 100 levels"),
        (nested(250), "more than 100 levels"),
        (nested(400), "more than 100 levels"),
        (nested(5000), "not JSON"),
        ('{"messages": [{"content": "\\ud800"}]}', "not JSON"),
        ('{"messages": "hello"}', "list of objects"),
        ("[]", "not a JSON object"),
    ],
)
async def test_a_request_that_cannot_be_served_is_400_and_loses_nothing(
    attempt, scripted_server, body, why
):
    server = scripted_server(["before", "after"])
    await attempt.control.set_upstreams([server.base_url], model="scripted", token_ids=True)
    await attempt.open()
    assert (await attempt.call()).status_code == 200
    response = await post(attempt, body)
    assert (response.status_code, error_code(response)) == (400, "bad_request")
    assert (await attempt.call()).status_code == 200
    transitions, (failure,) = await attempt.close()
    assert [(call.index, call.response_text) for call in transitions] == [
        (0, "before"),
        (2, "after"),
    ]
    assert (failure.index, failure.status) == (1, None)
    assert failure.detail.startswith("bad_request: ") and why in failure.detail


@pytest.mark.parametrize("levels", [50, 100])
async def test_nesting_that_can_be_written_again_goes_through(attempt, scripted_server, levels):
    server = scripted_server(["yes", "yes"])
    await attempt.control.set_upstreams([server.base_url], model="scripted", token_ids=True)
    await attempt.open()
    wide = '{"messages": [' + ", ".join(['{"role": "user", "content": "[{"}'] * 200) + "]}"
    for body in (nested(levels), wide):
        assert (await post(attempt, body)).status_code == 200
    transitions, failures = await attempt.close()
    assert len(transitions) == 2 and failures == []


async def test_an_answer_nested_too_deep_to_be_passed_on_is_502(attempt, scripted_server):
    deep = b"[" * 300 + b"]" * 300
    choice = (
        b'{"message": {"content": "yes"}, "finish_reason": "stop", "token_ids": [1], "x": %s, '
        % deep
    )
    choice += b'"logprobs": {"content": [{"logprob": -0.5}]}}'
    server = scripted_server(
        [Reply(raw=b'{"id": "d", "choices": [%s], "prompt_token_ids": [3]}' % choice)]
    )
    await attempt.control.set_upstreams([server.base_url], model="scripted", token_ids=True)
    await attempt.open()
    response = await attempt.call()
    assert (response.status_code, error_code(response)) == (502, "bad_answer")
    transitions, (failure,) = await attempt.close()
    assert transitions == [] and failure.detail.startswith("bad_answer: ")


async def test_deep_options_of_an_attempt_are_refused(attempt):
    deep: list = []
    for _ in range(150):
        deep = [deep]
    with pytest.raises(RuntimeError, match="100 levels"):
        await attempt.open(sampling={"stop": deep})


async def test_a_closed_attempt_answers_410_and_cannot_be_opened_again(attempt):
    await attempt.open()
    await attempt.close()
    late = await attempt.call()
    assert (late.status_code, error_code(late)) == (410, "attempt_closed")
    with pytest.raises(RuntimeError, match="exists"):
        await attempt.open()
    with pytest.raises(RuntimeError, match="closed"):
        await attempt.close()


@pytest.mark.parametrize(
    "options",
    [{"sampling": {"n": 2}}, {"timeout_s": 0}, {"roles": []}, {"sampling": {"messages": []}}],
)
async def test_an_attempt_with_senseless_options_is_refused(attempt, options):
    with pytest.raises(RuntimeError, match=next(iter(options))):
        await attempt.open(**options)


async def test_ids_may_hold_any_character(attempt, scripted_server):
    server = scripted_server(["yes"])
    await attempt.control.set_upstreams([server.base_url], model="scripted", token_ids=True)
    attempt.rollout_id += "/é %2F?#"
    await attempt.open(roles=["a/b c"])
    assert (await attempt.call("a/b c")).status_code == 200
    (transition,), _ = await attempt.close()
    assert (transition.rollout_id, transition.role) == (attempt.rollout_id, "a/b c")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("status", [400, 500])
async def test_an_upstream_error_comes_through_as_it_is_and_is_not_retried(
    attempt, scripted_server, status, stream
):
    server = scripted_server([Reply.failure(status, "too bad", retry_after="7"), "never said"])
    await attempt.control.set_upstreams([server.base_url], model="scripted", token_ids=True)
    await attempt.open()
    response = await attempt.call(stream=stream)
    assert response.status_code == status
    assert response.json()["error"]["message"] == "too bad"
    assert response.headers["retry-after"] == "7"
    assert [request.messages for request in server.requests].count(MESSAGES) == 1
    transitions, (failure,) = await attempt.close()
    assert transitions == []
    assert (failure.index, failure.role, failure.status, failure.code) == (
        0,
        "write_query",
        status,
        "upstream_status",
    )
    assert "too bad" in failure.detail


async def test_what_is_wrong_with_the_agents_own_part_of_a_request_is_the_agents_doing(
    attempt, scripted_server
):
    server = scripted_server(
        lambda request: Reply.failure(400, "no such tool") if request.params.get("tools") else "yes"
    )
    await attempt.control.set_upstreams([server.base_url], model="scripted", token_ids=True)
    await attempt.open()
    for _ in range(2):
        assert (
            await attempt.call(tools=[{"type": "function"}], tool_choice="required")
        ).status_code == 400
    _, failures = await attempt.close()
    assert [failure.cause for failure in failures] == ["agent", "agent"]
    theirs, ours, again = server.requests  # what the run itself sends is tried once
    assert theirs.messages == again.messages == MESSAGES != ours.messages
    assert ours.params["temperature"] == 0.7 and not ours.params.keys() & {"tools", "tool_choice"}


async def test_what_is_wrong_with_every_request_is_the_policy_servers_doing(
    attempt, scripted_server
):
    server = scripted_server(lambda request: Reply.failure(400, "top_p is not supported"))
    await attempt.control.set_upstreams([server.base_url], model="scripted", token_ids=True)
    await attempt.open()
    await attempt.call(tool_choice="auto")
    _, (failure,) = await attempt.close()
    assert (failure.code, failure.cause) == ("upstream_status", "policy_server")


async def test_an_attempt_that_calls_without_measure_fails_itself(scripted_server):
    """Calls that wait would fill the queue, and others' calls would fail for it."""
    server = scripted_server(lambda request: Reply("yes", delay_s=1.0))
    with GatewayServer(calls_at_once=3) as gateway:
        async with gateway.control() as control, httpx.AsyncClient(timeout=20) as http:
            await control.set_upstreams([server.base_url], model="scripted", token_ids=True)
            one = await Attempt(gateway, control, http, "greedy").open()
            statuses = [
                response.status_code
                for response in await asyncio.gather(*(one.call() for _ in range(8)))
            ]
            transitions, failures = await one.close()
    assert sorted(statuses) == [200] * 3 + [429] * 5 and len(transitions) == 3
    assert {(failure.code, failure.cause) for failure in failures} == {("too_many_calls", "agent")}


@pytest.mark.parametrize(
    "message",
    [
        "This model's maximum context length is 864 tokens. However, you requested 96 output tokens and your prompt "
        "contains at least 769 input tokens, for a total of at least 865 tokens.",
        "prompt is too long: 210000 tokens > 200000 maximum",
    ],
)
async def test_a_prompt_that_does_not_fit_has_a_code_of_its_own(attempt, scripted_server, message):
    server = scripted_server([Reply.failure(400, message)])
    await attempt.control.set_upstreams([server.base_url], model="scripted", token_ids=True)
    await attempt.open()
    response = await attempt.call()
    assert response.status_code == 400 and response.json()["error"]["message"] == message
    _, (failure,) = await attempt.close()
    assert failure.detail.startswith("prompt_too_long: 400 ")


@pytest.mark.parametrize(
    ("reply", "code"),
    [
        (Reply("never", drop="before"), "upstream_unreachable"),
        (Reply("half of it", drop="midway"), "upstream_dropped"),
        (Reply(raw=b"<html>"), "bad_answer"),
        (Reply(raw=b'{"id": "x", "choices": []}'), "bad_answer"),
        (
            Reply(raw=b'{"id": "x", "choices": [{"message": {"content": [{"type": "text"}]}}]}'),
            "bad_answer",
        ),
    ],
)
async def test_no_usable_answer_is_502(attempt, scripted_server, reply, code):
    server = scripted_server([reply])
    await attempt.control.set_upstreams([server.base_url], model="scripted", token_ids=True)
    await attempt.open()
    response = await attempt.call()
    assert (response.status_code, error_code(response)) == (502, code)
    transitions, (failure,) = await attempt.close()
    assert transitions == [] and failure.detail.startswith(f"{code}: ")
    assert len(server.requests) == 1


async def test_a_count_that_is_none_is_left_out(attempt, scripted_server):
    choice = b'{"message": {"content": "yes"}, "finish_reason": "stop"}'
    usage = b'{"prompt_tokens": 3, "completion_tokens": "2"}'
    server = scripted_server(
        [Reply(raw=b'{"id": "u", "choices": [%s], "usage": %s}' % (choice, usage))]
    )
    await attempt.control.set_upstreams([server.base_url], model="scripted", token_ids=False)
    await attempt.open()
    assert (await attempt.call()).status_code == 200
    (transition,), failures = await attempt.close()
    assert failures == [] and (transition.prompt_tokens, transition.response_tokens) == (3, None)


async def test_a_stream_that_breaks_ends_with_an_error_event(attempt, scripted_server):
    server = scripted_server([Reply("one two three four", drop="midway", chunk_delay_s=0.02)])
    await attempt.control.set_upstreams([server.base_url], model="scripted", token_ids=True)
    await attempt.open()
    response = await attempt.call(stream=True)
    assert events(response)[-1]["error"]["code"] == "upstream_dropped"
    transitions, (failure,) = await attempt.close()
    assert transitions == [] and failure.detail.startswith("upstream_dropped: ")


async def test_a_dead_upstream_is_502_and_then_passed_over(attempt, scripted_server):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        dead = f"http://127.0.0.1:{taken.getsockname()[1]}/v1"
    server = scripted_server(lambda request: "yes")
    await attempt.control.set_upstreams([dead, server.base_url], model="scripted", token_ids=True)
    await attempt.open()
    statuses = [(await attempt.call()).status_code for _ in range(4)]
    assert statuses == [502, 200, 200, 200]
    transitions, (failure,) = await attempt.close()
    assert failure.detail.startswith("upstream_unreachable: ") and failure.status is None
    assert [transition.index for transition in transitions] == [1, 2, 3]


async def test_the_attempts_deadline_is_504(attempt, scripted_server):
    server = scripted_server([Reply(hang=True)])
    await attempt.control.set_upstreams([server.base_url], model="scripted", token_ids=True)
    await attempt.open(timeout_s=0.2)
    response = await attempt.call()
    assert (response.status_code, error_code(response)) == (504, "attempt_timeout")
    assert server.requests[0].aborted.wait(5)
    again = await attempt.call()
    assert error_code(again) == "attempt_timeout"
    transitions, failures = await attempt.close()
    assert transitions == [] and [failure.index for failure in failures] == [0, 1]


@pytest.mark.parametrize("late", [False, True])
async def test_a_call_ended_after_the_deadline_ended_for_it_whoever_comes_first(late):
    """The host watches the same deadline: its close can be served before the gateway's own timer."""
    log = AttemptLog("r", "a", {}, 0.05 if late else 60.0, frozenset({"writer"}))
    under_way = asyncio.create_task(_calling(log))
    await asyncio.sleep(0)
    time.sleep(0.1)  # the loop is held: no timer can fire before the close
    log.close()
    (failure,) = log.failures
    assert failure.detail.startswith("attempt_timeout: " if late else "attempt_closed: ")
    with pytest.raises(asyncio.CancelledError):
        await under_way


async def _calling(log: AttemptLog) -> None:
    log.begin("writer").ask({"messages": []})
    await asyncio.sleep(60)


@pytest.mark.parametrize("stream", [False, True])
async def test_closing_an_attempt_cancels_its_calls(attempt, scripted_server, stream):
    server = scripted_server([Reply(hang=True)])
    await attempt.control.set_upstreams([server.base_url], model="scripted", token_ids=True)
    await attempt.open()
    call = asyncio.create_task(attempt.call(stream=stream))
    await asyncio.to_thread(server.wait_for_requests, 1)
    transitions, (failure,) = await attempt.close()
    response = await call
    assert (response.status_code, error_code(response)) == (410, "attempt_closed")
    assert transitions == [] and failure.detail.startswith("attempt_closed: ")
    assert server.requests[0].aborted.wait(5)


@pytest.mark.parametrize("stream", [False, True])
async def test_an_agent_that_hangs_up_cancels_the_upstream_call(attempt, scripted_server, stream):
    server = scripted_server(
        [Reply("one two three " * 20, chunk_delay_s=0.1, delay_s=0 if stream else 60)]
    )
    await attempt.control.set_upstreams([server.base_url], model="scripted", token_ids=True)
    await attempt.open()
    call = asyncio.create_task(attempt.call(stream=stream))
    await asyncio.to_thread(server.wait_for_requests, 1)
    await asyncio.sleep(0.15)
    call.cancel()
    assert await asyncio.to_thread(server.requests[0].aborted.wait, 5)
    transitions, (failure,) = await attempt.close()
    assert transitions == [] and failure.detail.startswith("client_disconnect: ")


async def test_calls_under_way_survive_a_change_of_upstreams(attempt, scripted_server):
    old = scripted_server([Reply("from the old", delay_s=0.3)])
    new = scripted_server(["from the new"], model="next")
    await attempt.control.set_upstreams([old.base_url], model="scripted", token_ids=True)
    await attempt.open()
    first = asyncio.create_task(attempt.call())
    await asyncio.to_thread(old.wait_for_requests, 1)
    await attempt.control.set_upstreams([new.base_url], model="next", token_ids=True)
    assert (await attempt.call()).status_code == 200
    assert (await first).status_code == 200
    transitions, failures = await attempt.close()
    assert failures == []
    assert [(t.model, t.response_text) for t in transitions] == [
        ("scripted", "from the old"),
        ("next", "from the new"),
    ]


async def test_a_rollout_stays_on_its_server_and_rollouts_spread(attempt, scripted_server):
    servers = [scripted_server(lambda request: Reply("yes", delay_s=0.3)) for _ in range(2)]
    await attempt.control.set_upstreams(
        [s.base_url for s in servers], model="scripted", token_ids=True
    )
    ours = [
        Attempt(attempt.gateway, attempt.control, attempt.http, f"{attempt.rollout_id}-{i}")
        for i in range(6)
    ]

    async def rollout(one: Attempt) -> None:
        await one.open()
        for turn in range(3):
            await one.call(messages=[{"role": "user", "content": f"{one.rollout_id} {turn}"}])

    await asyncio.gather(*map(rollout, ours))
    seen = [{r.messages[0]["content"].split()[0] for r in s.requests} for s in servers]
    assert not seen[0] & seen[1]
    assert [len(rollouts) for rollouts in seen] == [3, 3]


async def test_a_full_queue_is_503_and_waiting_calls_are_served_in_order(scripted_server):
    server = scripted_server(lambda request: Reply("yes", delay_s=0.8))
    with GatewayServer(upstream_concurrency=1, queue_size=2) as gateway:
        async with gateway.control() as control, httpx.AsyncClient(timeout=20) as http:
            attempt = Attempt(gateway, control, http, "r")
            await attempt.open()
            unset = await attempt.call()
            assert (unset.status_code, error_code(unset)) == (503, "no_upstream")
            await control.set_upstreams([server.base_url], model="scripted", token_ids=True)
            calls = []
            for waiting in range(3):
                calls.append(asyncio.create_task(attempt.call()))

                async def arrived(waiting=waiting):
                    stats = await control.stats()
                    return stats["queued"] == waiting and stats["upstreams"][0]["in_flight"] == 1

                await wait_until(arrived)
            full = await attempt.call()
            assert (full.status_code, error_code(full)) == (503, "queue_full")
            assert full.headers["retry-after"] == "1"
            calls[1].cancel()
            assert [(await calls[i]).status_code for i in (0, 2)] == [200, 200]
            stats = await control.stats()
            assert stats["failures"] == {"no_upstream": 1, "queue_full": 1, "client_disconnect": 1}
            assert (stats["transitions"], stats["queued"]) == (2, 0)
            transitions, failures = await attempt.close()
            assert [t.index for t in transitions] == [1, 3]
            assert [f.index for f in failures] == [0, 2, 4]
            assert transitions[1].gateway_s > 0.1 > transitions[0].gateway_s
            assert len(server.requests) == 2


async def test_a_call_that_takes_too_long_is_504(scripted_server):
    server = scripted_server([Reply(hang=True)])
    with GatewayServer(call_timeout_s=0.2) as gateway:
        async with gateway.control() as control, httpx.AsyncClient(timeout=20) as http:
            await control.set_upstreams([server.base_url], model="scripted", token_ids=True)
            attempt = await Attempt(gateway, control, http, "r").open()
            response = await attempt.call()
            assert (response.status_code, error_code(response)) == (504, "upstream_timeout")
            _, (failure,) = await attempt.close()
            assert failure.detail.startswith("upstream_timeout: ") and failure.latency_s > 0.19


async def test_a_gateway_that_is_gone_is_an_endpoint_error():
    with GatewayServer() as gateway:
        url, key = gateway.base_url, gateway.control_key
    async with GatewayControl(url, key) as control:
        with pytest.raises(EndpointError, match="does not answer"):
            await control.stats()


async def test_a_taken_port_is_one_clear_error():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(EnvironmentProblem, match="another port"):
            GatewayServer(port=taken.getsockname()[1]).start()


async def test_the_process_dies_with_its_parent():
    code = (
        "from harness.gateway.server import GatewayServer\n"
        "import time\n"
        "print(GatewayServer().start().pid, flush=True)\n"
        "time.sleep(60)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    pid = int(await asyncio.to_thread(parent.stdout.readline))
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait()
    parent.stdout.close()

    async def gone():
        try:
            with open(f"/proc/{pid}/stat") as stat:
                return stat.read().rpartition(")")[2].split()[0] == "Z"
        except FileNotFoundError:
            return True

    await wait_until(gone)


async def test_stop_leaves_no_process_even_with_a_call_under_way(scripted_server):
    server = scripted_server([Reply(hang=True)])
    gateway = GatewayServer().start()
    async with gateway.control() as control, httpx.AsyncClient(timeout=20) as http:
        await control.set_upstreams([server.base_url], model="scripted", token_ids=True)
        attempt = await Attempt(gateway, control, http, "r").open()
        call = asyncio.create_task(attempt.call(messages=MESSAGES))
        await asyncio.to_thread(server.wait_for_requests, 1)
        pid = gateway.pid
        await asyncio.to_thread(gateway.stop)
        gateway.stop()
        assert gateway.pid is None and not os.path.exists(f"/proc/{pid}")
        with pytest.raises(httpx.HTTPError):
            (await call).raise_for_status()


async def test_an_answer_that_the_upstream_cut_off_is_asked_for_again(attempt, scripted_server):
    """vLLM ends what is under way with `finish_reason: abort` when verl changes its weights."""
    server = scripted_server([Reply("SELECT na", finish_reason="abort"), "SELECT name"])
    await attempt.control.set_upstreams([server.base_url], model="scripted", token_ids=True)
    await attempt.open()
    answer = await attempt.call()
    assert (
        answer.status_code == 200
        and answer.json()["choices"][0]["message"]["content"] == "SELECT name"
    )
    transitions, failures = await attempt.close()
    assert [call.response_text for call in transitions] == ["SELECT name"] and failures == []
    assert len(server.requests) == 2


async def test_answers_that_the_upstream_always_aborts_end_at_the_deadline_with_their_number(
    attempt, scripted_server
):
    server = scripted_server(lambda request: Reply("SELECT na", finish_reason="abort"))
    await attempt.control.set_upstreams([server.base_url], model="scripted", token_ids=True)
    await attempt.open(timeout_s=2.0)
    answer = await attempt.call()
    assert answer.status_code == 504
    transitions, failures = await attempt.close()
    assert transitions == [] and len(failures) == 1
    assert re.search(r"deadline passed; the upstream aborted [1-9]\d* answers", failures[0].detail)


async def test_a_stream_that_the_upstream_cut_off_is_no_transition(attempt, scripted_server):
    server = scripted_server([Reply("SELECT na", finish_reason="abort")])
    await attempt.control.set_upstreams([server.base_url], model="scripted", token_ids=True)
    await attempt.open()
    answer = await attempt.call(stream=True)
    assert (
        "upstream_aborted" in answer.text
    )  # an event, or the whole answer where nothing had gone out
    transitions, failures = await attempt.close()
    assert transitions == [] and failures[0].detail.startswith("upstream_aborted")

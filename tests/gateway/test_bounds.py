"""What agents leave unfinished, or make too large: ended in time, recorded as theirs, and everything given back."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import ssl
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from harness.gateway.server import GatewayServer
from harness.mock_model.completion import Reply
from harness.testing.fixtures import StartServer

from .conftest import MESSAGES, Attempt, error_code

HEALTH = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"
UPGRADE = b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
CHUNKED = b"POST /health HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"


class Attacked:
    """A gateway, what it holds, and connections to it that nobody closes before the test ends."""

    def __init__(self, gateway: GatewayServer) -> None:
        self.gateway = gateway
        self._process = psutil.Process(gateway.pid)
        self._sockets: list[socket.socket] = []
        assert self.answers()
        self.descriptors, self.memory = self._process.num_fds(), self._process.memory_info().rss

    def connect(self, first: bytes = b"") -> socket.socket:
        port = int(self.gateway.base_url.rpartition(":")[2])
        peer = socket.create_connection(("127.0.0.1", port), timeout=20)
        self._sockets.append(peer)
        peer.sendall(first)
        return peer

    def answers(self) -> bool:
        """Whether health and control routes answer new connections."""
        for path in ("/health", "/control/stats"):
            with closing(
                HTTPConnection(self.gateway.base_url.removeprefix("http://"), timeout=20)
            ) as connection:
                connection.request(
                    "GET", path, headers={"Authorization": f"Bearer {self.gateway.control_key}"}
                )
                if connection.getresponse().status != 200:
                    return False
        return True

    def holds(self) -> int:
        """Descriptors more than in the beginning."""
        return self._process.num_fds() - self.descriptors

    def assert_unharmed(self, megabytes: int = 64) -> None:
        """It answers, and soon has its descriptors and its memory back."""
        deadline = time.monotonic() + 60
        while self.holds() > 0:
            assert time.monotonic() < deadline, f"{self.holds()} descriptors are still held"
            assert self.answers()
            time.sleep(0.1)
        assert self.answers()
        assert self._process.memory_info().rss - self.memory < megabytes * 2**20

    def close(self) -> None:
        for peer in self._sockets:
            peer.close()
        self._sockets.clear()


@pytest.fixture
def attacked(gateway: GatewayServer) -> Iterator[Attacked]:
    attack = Attacked(gateway)
    yield attack
    attack.close()


def send(peer: socket.socket, *pieces: bytes) -> None:
    """Send as much as the server takes."""
    try:
        for piece in pieces:
            peer.sendall(piece)
    except OSError:
        pass


def received(peer: socket.socket) -> bytes:
    """Everything up to the connection's end, which must come."""
    whole = b""
    try:
        while piece := peer.recv(2**16):
            whole += piece
    except ConnectionResetError:
        pass
    return whole


def answered(peer: socket.socket) -> tuple[int, bytes]:
    """One whole answer: its status and its body, however many pieces it comes in."""
    with closing(HTTPResponse(peer)) as response:
        response.begin()
        return response.status, response.read()


def call(attempt: Attempt, *headers: str) -> bytes:
    """The header of a call, as an agent sends it."""
    path = attempt.url().removeprefix(attempt.gateway.base_url)
    lines = (
        f"POST {path}/chat/completions HTTP/1.1",
        "Host: x",
        f"Authorization: Bearer {attempt.gateway.key}",
    )
    return "\r\n".join([*lines, *headers, "", ""]).encode()


@pytest.mark.slow
async def test_whatever_is_left_unfinished_is_ended_and_given_back() -> None:
    with GatewayServer(
        header_timeout_s=1, body_timeout_s=1, idle_timeout_s=1, calls_at_once=1000
    ) as gateway:
        async with gateway.control() as control, httpx.AsyncClient() as http:
            attempt = await Attempt(gateway, control, http, "r").open(timeout_s=600)
            await control.aclose()
            attack = Attacked(gateway)
            half_body = call(attempt, "Content-Length: 100") + b'{"mess'
            half = [
                *[b"", HEALTH[:-2], b"GET /\r\n", b"POST"] * 100,
                *[half_body] * 200,
                *[HEALTH, UPGRADE, half_body.replace(b"Bearer", b"Beaver")] * 10,
            ]
            dripping = [
                (HEALTH[:-2] + b"X-Slow: ", b"a"),
                (HEALTH, b"\r\n"),
                (UPGRADE, b"\x81\x00"),
                (call(attempt, "Transfer-Encoding: chunked"), b"1\r\na\r\n"),
                (CHUNKED, b"1\r\na\r\n"),
            ]
            for first in half:
                attack.connect(first)
            drips = [(attack.connect(first), drop) for first, drop in dripping * 5]
            late = [attack.connect(CHUNKED + b"1\r\na\r\n") for _ in range(10)]
            assert attack.answers()
            for peer in late:  # after the answer, and then nothing more
                send(peer, b"0\r\n\r\n")
            for _ in range(200):
                for peer, drop in drips:
                    send(peer, drop)
                if attack.holds() <= 0:
                    break
                await asyncio.sleep(0.1)
            attack.assert_unharmed()
            transitions, failures = await attempt.close()
            assert transitions == [] and len(failures) == 205
            assert {(failure.cause, failure.detail) for failure in failures} == {
                ("agent", "bad_request: the request's body was incomplete after 1 s")
            }
            attack.close()


@pytest.mark.slow
async def test_neither_a_long_wait_nor_a_slow_stream_nor_a_slow_reader_is_ended(
    scripted_server: StartServer,
) -> None:
    words = b"a" * 2**20
    message = b'{"message": {"content": "%s"}, "index": 0, "finish_reason": "stop"}' % (words * 15)
    big = b'{"id": "x", "choices": [%s]}' % message
    answers = [
        Reply("yes", delay_s=3.5),
        Reply("a b c d e f g h", chunk_delay_s=0.4),
        Reply(raw=big),
    ]
    server = scripted_server(answers, token_ids=False)
    bounds: dict[str, Any] = {
        f"{what}_timeout_s": 1 for what in ("header", "body", "idle", "unread")
    }
    with GatewayServer(**bounds) as gateway:
        async with gateway.control() as control, httpx.AsyncClient(timeout=60) as http:
            await control.set_upstreams([server.base_url], model="scripted", token_ids=False)
            attempt = await Attempt(gateway, control, http, "r").open(timeout_s=600)
            waiting = asyncio.create_task(attempt.call())
            await asyncio.to_thread(server.wait_for_requests, 1)
            streaming = asyncio.create_task(attempt.call(stream=True))
            await asyncio.to_thread(server.wait_for_requests, 2)
            attack = Attacked(gateway)
            body = b'{"messages": []}'
            peer = attack.connect(
                call(attempt, f"Content-Length: {len(body)}", "Connection: close") + body
            )
            read = bytearray()
            while piece := await asyncio.to_thread(peer.recv, 2**18):
                read += piece
                await asyncio.sleep(0.05)
            assert read.count(words) == 15
            assert (await waiting).json()["choices"][0]["message"]["content"] == "yes"
            assert "[DONE]" in (await streaming).text
            transitions, failures = await attempt.close()
            assert len(transitions) == 3 and failures == []
            attack.close()


@pytest.mark.slow
async def test_who_is_cut_off_is_told_so() -> None:
    with GatewayServer(header_timeout_s=1, body_timeout_s=1) as gateway:
        async with gateway.control() as control, httpx.AsyncClient() as http:
            attempt = await Attempt(gateway, control, http, "r").open()
            attack = Attacked(gateway)
            header = attack.connect(HEALTH[:-2])
            body = attack.connect(call(attempt, "Content-Length: 100"))
            for peer, part in ((header, b"header"), (body, b"body")):
                answer = received(peer)
                assert (
                    answer.startswith(b"HTTP/1.1 408 ")
                    and b"request's %s was incomplete" % part in answer
                )
            attack.close()


@pytest.mark.slow
async def test_time_in_which_the_gateway_stood_still_is_not_the_agents() -> None:
    with GatewayServer(header_timeout_s=1) as gateway:
        attack = Attacked(gateway)
        peer = attack.connect(HEALTH[:-2])
        assert attack.answers()  # so the first half has been read
        assert gateway.pid is not None
        os.kill(gateway.pid, signal.SIGSTOP)
        try:
            await asyncio.sleep(2)
            peer.sendall(b"Connection: close\r\n\r\n")
        finally:
            os.kill(gateway.pid, signal.SIGCONT)
        assert received(peer).startswith(b"HTTP/1.1 200 ")
        attack.close()


@pytest.mark.slow
async def test_who_connects_and_then_has_no_processor_is_not_late() -> None:
    with GatewayServer(header_timeout_s=1) as gateway:
        attack = Attacked(gateway)
        peer = attack.connect(b"")
        await asyncio.sleep(3)
        peer.sendall(HEALTH[:-2] + b"Connection: close\r\n\r\n")
        assert received(peer).startswith(b"HTTP/1.1 200 ")
        attack.close()


@pytest.mark.slow
async def test_half_a_request_behind_a_whole_one_is_late() -> None:
    with GatewayServer(header_timeout_s=1) as gateway:
        attack = Attacked(gateway)
        peer = attack.connect(HEALTH + b"GET /health HTTP/1.1\r\n")
        peer.settimeout(20)  # a connection may be idle for longer
        answers = received(peer)
        assert (
            answers.startswith(b"HTTP/1.1 200 ")
            and b"request's header was incomplete after 1 s" in answers
        )
        attack.close()


def megabytes(count: int) -> Iterator[bytes]:
    return (b"a" * 2**20 for _ in range(count))


@pytest.mark.parametrize(
    "pieces",
    [
        lambda: (b"GET /health HTTP/1.1\r\nX-Big: ", *megabytes(20), b"\r\n\r\n"),
        lambda: (b"GET /", *megabytes(20), b" HTTP/1.1\r\nHost: x\r\n\r\n"),
        lambda: (
            b"GET /health HTTP/1.1\r\n",
            *(b"x-%d: y\r\n" % number for number in range(200_000)),
            b"\r\n",
        ),
        lambda: (b"GET /health HTTP/1.1\r\nX: " + b"a" * 2**16 + b"\r\n\r\n",),
        lambda: (b"GET /health HTTP/1.1\r\n" + b"a: b\r\n" * 101 + b"\r\n",),
    ],
    ids=[
        "20 MB of a header",
        "20 MB of a URL",
        "200 000 headers",
        "a header just too long",
        "101 headers",
    ],
)
def test_a_header_that_is_too_large_is_431(
    attacked: Attacked, pieces: Callable[[], tuple[bytes, ...]]
) -> None:
    peer = attacked.connect()
    send(peer, *pieces())
    answer = received(peer)
    assert answer.startswith(b"HTTP/1.1 431 ") and b'"bad_request"' in answer
    attacked.close()
    attacked.assert_unharmed()


def test_a_header_within_bounds_is_taken(attacked: Attacked) -> None:
    peer = attacked.connect(
        b"GET /health HTTP/1.1\r\n" + b"a: b\r\n" * 98 + b"X: " + b"a" * 60_000 + b"\r\n"
    )
    assert attacked.answers()  # so it comes in two parts
    peer.sendall(b"Connection: close\r\n\r\n")
    assert received(peer).startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize(
    "pieces",
    [
        lambda: (CHUNKED, b"0\r\n", *(b"x-%d: y\r\n" % number for number in range(200_000))),
        lambda: (CHUNKED, b"0\r\nX-Big: ", *megabytes(100)),
        lambda: (CHUNKED, b"5;x=", *megabytes(100)),
    ],
    ids=["trailers", "a trailer", "a chunk's extension"],
)
def test_what_stands_beside_a_body_is_bounded_too(
    attacked: Attacked, pieces: Callable[[], tuple[bytes, ...]]
) -> None:
    peer = attacked.connect()
    send(peer, *pieces())
    assert b" 404 " in received(peer)
    attacked.close()
    attacked.assert_unharmed()


def test_of_requests_sent_at_once_the_first_is_answered(attacked: Attacked) -> None:
    peer = attacked.connect()
    send(peer, *(HEALTH * 10_000 for _ in range(10)))
    answer = received(peer)
    assert answer.count(b"HTTP/1.1 200 ") == 1 and b"connection: close" in answer
    attacked.close()
    attacked.assert_unharmed()


@pytest.mark.parametrize(
    "garbage",
    [
        b"\x00\xff" * 100 + b"\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"CONNECT x:1 HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET http://x HTTP/1.1\r\nHost: x\r\n\r\n",
        b"POST /health HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999999999999999\r\n\r\n",
        b"POST /health HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    ],
)
def test_what_is_no_request_is_400(attacked: Attacked, garbage: bytes) -> None:
    assert received(attacked.connect(garbage)).startswith(b"HTTP/1.1 400 ")
    attacked.close()
    attacked.assert_unharmed()


def test_a_client_that_speaks_tls_is_turned_away(attacked: Attacked) -> None:
    context = ssl.create_default_context()
    with pytest.raises((ssl.SSLError, ConnectionError)):
        context.wrap_socket(attacked.connect(), server_hostname="x")
    attacked.close()
    attacked.assert_unharmed()


@pytest.mark.slow
@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_that_nobody_reads_is_given_up(
    scripted_server: StartServer, stream: bool
) -> None:
    words = b"a" * 2**14
    choice = b'"choices": [{"index": 0, "%s": {"content": "%s"}, "finish_reason": %s}]'
    chunk = b'data: {"id": "x", %s}\n\n' % (choice % (b"delta", words, b"null"))
    whole = b'{"id": "x", %s}' % (choice % (b"message", words * 600, b'"stop"'))
    server = scripted_server([Reply(raw=chunk * 600 if stream else whole)], token_ids=False)
    with GatewayServer(unread_timeout_s=1, idle_timeout_s=1) as gateway:
        async with gateway.control() as control, httpx.AsyncClient() as http:
            await control.set_upstreams([server.base_url], model="scripted", token_ids=False)
            attempt = await Attempt(gateway, control, http, "r").open(timeout_s=600)
            await control.aclose()
            attack = Attacked(gateway)
            body = b'{"stream": %s, "messages": []}' % (b"true" if stream else b"false")
            attack.connect(call(attempt, f"Content-Length: {len(body)}") + body)
            await asyncio.to_thread(server.wait_for_requests, 1)
            attack.assert_unharmed(megabytes=150)
            transitions, failures = await attempt.close()
            if stream:
                (failure,) = failures
                assert failure.detail == "client_disconnect: what was sent was not read for 1 s"
            else:
                assert len(transitions) == 1
            attack.close()


@pytest.mark.parametrize("end", ["close", "deadline", "hanging up"])
async def test_half_a_body_is_the_agents_own_failure(attempt: Attempt, end: str) -> None:
    await attempt.open(timeout_s=1 if end == "deadline" else 600)
    attack = Attacked(attempt.gateway)
    peer = attack.connect(call(attempt, "Content-Length: 100") + b'{"mess')
    assert attack.answers()
    if end == "deadline":
        status, answer = await asyncio.to_thread(answered, peer)
        assert status == 504 and b"deadline passed" in answer
    elif end == "hanging up":
        peer.close()
        await asyncio.to_thread(attack.assert_unharmed)
    transitions, (failure,) = await attempt.close()
    assert transitions == [] and (failure.index, failure.role) == (0, "write_query")
    cause = (
        ("deadline", "attempt_timeout: ")
        if end == "deadline"
        else ("agent", "bad_request: the request was incomplete: ")
    )
    assert failure.cause == cause[0] and failure.detail.startswith(cause[1])
    assert failure.latency_s == 0  # so that the time counts as the agent's
    if end == "close":
        status, answer = await asyncio.to_thread(answered, peer)
        assert status >= 400 and b"the attempt was closed" in answer
    attack.close()


async def test_half_a_body_takes_no_seed_and_no_call_is_served_after_the_end(
    attempt: Attempt, scripted_server: StartServer
) -> None:
    server = scripted_server(lambda request: "yes")
    await attempt.control.set_upstreams([server.base_url], model="scripted", token_ids=True)
    seeds = []
    for half in (False, True):
        attempt.attempt_id = str(half)
        await attempt.open(sampling={"seed": 7})
        attack = Attacked(attempt.gateway)
        body = b'{"messages": []}'
        peer = (
            attack.connect(call(attempt, f"Content-Length: {len(body)}") + body[:-1])
            if half
            else None
        )
        assert attack.answers() and (await attempt.call()).status_code == 200
        transitions, failures = await attempt.close()
        seeds.append([transition.sampling["seed"] for transition in transitions])
        assert len(failures) == half
        if peer is not None:
            peer.sendall(body[-1:])
        attack.close()
    assert seeds[0] == seeds[1]
    assert len(server.requests) == 2


@pytest.mark.slow
async def test_at_256_descriptors_health_control_and_calls_are_served(
    scripted_server: StartServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nulimit -n 256\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    server = scripted_server(
        lambda request: Reply("yes", delay_s=1.0 if "slow" in str(request.messages) else 0.0)
    )
    with GatewayServer() as gateway:
        async with gateway.control() as control, httpx.AsyncClient(timeout=60) as http:
            await control.set_upstreams([server.base_url], model="scripted", token_ids=True)
            attempt = await Attempt(gateway, control, http, "r").open(timeout_s=600)
            await Attempt(gateway, control, http, "other").open(timeout_s=600)
            await control.aclose()
            attack = Attacked(gateway)
            under_way = asyncio.create_task(
                attempt.call(messages=[{"role": "user", "content": "slow"}])
            )
            await asyncio.to_thread(server.wait_for_requests, 1)
            other = Attempt(gateway, control, http, "other")
            half_body = call(other, "Content-Length: 100")
            for first, count in ((HEALTH[:-2], 300), (HEALTH, 50), (half_body, 200), (b"", 100)):
                for number in range(count):
                    attack.connect(first)
                    if (
                        number % 40 == 39
                    ):  # before the listener's queue is full, where a connection waits for a second
                        assert attack.answers()
                assert (await attempt.call()).status_code == 200
            assert (await under_way).status_code == 200
            assert attack.holds() < 200
            attack.close()
            await http.aclose()
            await asyncio.to_thread(attack.assert_unharmed)
            transitions, failures = await attempt.close()
            assert len(transitions) == 5 and failures == []
            _, failures = await other.close()
            assert len(failures) == 200
            assert {failure.code for failure in failures} <= {
                "bad_request",
                "too_many_calls",
                "queue_full",
            }


@pytest.mark.slow
async def test_calls_are_fewer_than_connections(scripted_server: StartServer) -> None:
    server = scripted_server(lambda request: Reply("yes", delay_s=1.0))
    with GatewayServer(max_connections=8) as gateway:
        async with gateway.control() as control, httpx.AsyncClient(timeout=60) as http:
            await control.set_upstreams([server.base_url], model="scripted", token_ids=True)
            attempt = await Attempt(gateway, control, http, "r").open(timeout_s=600)
            calls: list[asyncio.Task[Any]] = [
                asyncio.create_task(attempt.call(messages=MESSAGES)) for _ in range(6)
            ]
            await asyncio.to_thread(server.wait_for_requests, 6)
            full = await attempt.call()
            assert (full.status_code, error_code(full)) == (503, "queue_full")
            assert [(await one).status_code for one in calls] == [200] * 6
            assert (await attempt.call()).status_code == 200

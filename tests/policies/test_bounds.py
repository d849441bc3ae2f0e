"""What callers of the CPU's policy server leave unfinished, or make too large: ended in time, and never in its way."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
import pytest_asyncio

pytest.importorskip("torch")
pytest.importorskip("transformers")

from harness.util.http_server import Limits
from harness_policy_server.decoder import Generation
from harness_policy_server.server import PolicyServer

POST = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n"


class Slow(PolicyServer):
    """Takes longer for an answer than callers may take for anything."""

    async def sample(
        self, prompt_ids: list[int], limit: int, sampling: dict[str, Any]
    ) -> Generation:
        await asyncio.sleep(3.5)
        ids = [*self.tokenizer.encode("yes"), self.tokenizer.eos_token_id]
        return Generation(
            prompt_ids, limit, token_ids=ids, logprobs=[-1.0] * len(ids), finish_reason="stop"
        )


@pytest_asyncio.fixture
async def address(policy: Path) -> AsyncIterator[str]:
    server = Slow(str(policy), slots=2, response_length=64, max_length=2048)
    limits = Limits(header_s=1, body_s=1, idle_s=1, unread_s=1, rest_s=1, connections=64)
    yield await server.launch(limits=limits)
    server.decoder.stop()
    assert server._serving is not None
    server._serving.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await server._serving


Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def connect(address: str, *pieces: bytes) -> Connection:
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    with contextlib.suppress(ConnectionError):
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
    return reader, writer


async def received(connection: Connection) -> bytes:
    """Everything up to the connection's end."""
    reader, writer = connection
    whole = bytearray()
    with contextlib.suppress(ConnectionError):
        while piece := await reader.read(2**16):
            whole += piece
    writer.close()
    return bytes(whole)


@pytest.mark.slow
async def test_half_requests_are_ended_while_a_long_answer_is_not(address: str) -> None:
    process = psutil.Process()
    before = process.num_fds()
    async with httpx.AsyncClient(timeout=60) as http:
        asked = {"messages": [{"role": "user", "content": "1 + 2?"}]}
        long = asyncio.create_task(http.post(f"http://{address}/v1/chat/completions", json=asked))
        await asyncio.sleep(0.2)
        halves = [POST, POST + b"Content-Length: 100\r\n\r\n{"] * 100
        held = [await connect(address, half) for half in halves]
        assert (await http.get(f"http://{address}/health")).status_code == 200
        answers = await asyncio.wait_for(asyncio.gather(*map(received, held)), 60)
        assert {answer.partition(b"\r\n")[0] for answer in answers} <= {
            b"HTTP/1.1 408 Request Timeout",
            b"",
        }
        assert any(b"the request's header was incomplete after 1 s" in answer for answer in answers)
        assert any(b"the request's body was incomplete after 1 s" in answer for answer in answers)
        assert (await long).json()["choices"][0]["message"]["content"] == "yes"
    for _ in range(100):
        if process.num_fds() <= before:
            break
        await asyncio.sleep(0.1)
    assert process.num_fds() <= before


@pytest.mark.slow
async def test_what_is_too_large_is_refused_in_one_line(address: str) -> None:
    header = await received(
        await connect(address, b"GET /health HTTP/1.1\r\nX: ", *[b"a" * 2**16] * 16)
    )
    assert (
        header.startswith(b"HTTP/1.1 431 ")
        and b"the request's header is longer than 65536 bytes" in header
    )
    for length in (
        b"Content-Length: 2097152\r\n\r\n",
        b"Transfer-Encoding: chunked\r\n\r\n200000\r\n",
    ):
        body = await received(await connect(address, POST + length, *[b"a" * 2**16] * 32))
        assert body.startswith(b"HTTP/1.1 400 ") and b'"code":"context_length_exceeded"' in body
        assert b"your request has more than 1835008 bytes" in body

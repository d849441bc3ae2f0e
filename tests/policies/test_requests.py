"""What the CPU's policy server refuses before it computes anything, and that it answers beside long work."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio

pytest.importorskip("torch")
pytest.importorskip("transformers")

from harness_policy_server.decoder import Generation
from harness_policy_server.requests import text_size
from harness_policy_server.server import INLINE_CHARS, PolicyServer

USER: Any = [{"role": "user", "content": "1 + 2?"}]
WAIT_S = 60.0


class Held(PolicyServer):
    """Makes prompts off the event loop only once the test allows it; what it samples is scripted."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.allowed = threading.Event()
        self.off_the_loop = threading.Event()
        self.made_by: list[str] = []

    def _prompt_ids(self, body: dict[str, Any]) -> list[int]:
        thread = threading.current_thread()
        self.made_by.append(thread.name)
        if thread is not threading.main_thread():
            self.off_the_loop.set()
            assert self.allowed.wait(WAIT_S)
        return super()._prompt_ids(body)

    async def sample(
        self, prompt_ids: list[int], limit: int, sampling: dict[str, Any]
    ) -> Generation:
        ids = [*self.tokenizer.encode("yes"), self.tokenizer.eos_token_id]
        return Generation(
            prompt_ids, limit, token_ids=ids, logprobs=[-1.0] * len(ids), finish_reason="stop"
        )


@pytest_asyncio.fixture
async def held(policy: Path) -> AsyncIterator[tuple[Held, httpx.AsyncClient]]:
    server = Held(str(policy), slots=2, response_length=64, max_length=50_000)
    address = await server.launch()
    async with httpx.AsyncClient(base_url=f"http://{address}", timeout=WAIT_S) as client:
        yield server, client
    server.allowed.set()
    server.decoder.stop()
    assert server._serving is not None
    server._serving.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await server._serving


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_tokens", "5"),
        ("max_tokens", 0),
        ("max_tokens", True),
        ("max_completion_tokens", 2.5),
        ("temperature", "x"),
        ("temperature", -1),
        ("top_p", 0),
        ("top_p", 1.5),
        ("seed", "7"),
        ("seed", 2**64 - 0.5),
        ("n", 1000),
        ("n", 0),
        ("stream", "yes"),
        ("logprobs", 5),
        ("return_token_ids", "no"),
        ("model", 7),
        ("tools", {}),
        ("tools", ["add"]),
        ("tool_choice", "required"),
        ("messages", []),
        ("messages", "hello"),
        ("messages", None),
        ("messages[1]", "hello"),
        ("chat_template_kwargs", []),
        ("chat_template_kwargs.chat_template", "{% for i in range(10**9) %}{% endfor %}"),
        ("chat_template_kwargs.tokenize", False),
        ("chat_template_kwargs.messages", "other"),
        ("chat_template_kwargs.eos_token", "other"),
        ("chat_template_kwargs.max_length", 3),
        ("chat_template_kwargs.enable_thinking", [1]),
        ("chat_template_kwargs.enable_thinking", "a" * 201),
    ],
)
async def test_a_field_that_is_wrong_is_named(
    held: tuple[Held, httpx.AsyncClient], field: str, value: Any
) -> None:
    server, client = held
    asked: dict[str, Any] = {"messages": USER}
    if field == "messages[1]":
        asked["messages"] = [*USER, value]
    elif field.startswith("chat_template_kwargs."):
        asked["chat_template_kwargs"] = {field.partition(".")[2]: value}
    else:
        asked[field] = value
    answer = await client.post("/v1/chat/completions", json=asked)
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert error["param"] == field and field in error["message"]
    assert server.made_by == []


async def test_fields_that_are_right_or_null_are_taken(
    held: tuple[Held, httpx.AsyncClient],
) -> None:
    _, client = held
    asked: Any = {"messages": USER, "max_tokens": 5, "temperature": 0, "top_p": 1, "seed": 2**63}
    asked |= {"n": 1, "stop": None, "tools": None, "logprobs": True, "max_completion_tokens": None}
    asked |= {"tool_choice": "auto", "chat_template_kwargs": {"enable_thinking": False}}
    answer = await client.post("/v1/chat/completions", json=asked)
    assert answer.status_code == 200, answer.text
    assert answer.json()["choices"][0]["message"]["content"] == "yes"


async def test_health_is_answered_while_a_long_prompt_is_made(
    held: tuple[Held, httpx.AsyncClient],
) -> None:
    server, client = held
    long = [{"role": "user", "content": "a" * (INLINE_CHARS + 1)}]
    under_way = asyncio.create_task(client.post("/v1/chat/completions", json={"messages": long}))
    assert await asyncio.to_thread(server.off_the_loop.wait, WAIT_S)
    assert (await client.get("/health")).status_code == 200
    short = await client.post("/v1/chat/completions", json={"messages": USER})
    assert short.status_code == 200
    assert not under_way.done()
    server.allowed.set()
    answer = await under_way
    assert answer.status_code == 200
    assert answer.json()["usage"]["prompt_tokens"] > INLINE_CHARS


@pytest.mark.parametrize("where", ["messages", "tools"])
async def test_a_text_that_cannot_fit_is_refused_before_a_prompt_is_made(
    held: tuple[Held, httpx.AsyncClient], where: str
) -> None:
    server, client = held
    text = "a" * 5_000_000
    asked: Any = {"messages": USER}
    if where == "messages":
        asked["messages"] = [{"role": "user", "content": [{"type": "text", "text": text}]}]
    else:
        asked["tools"] = [{"type": "function", "function": {"name": "f", "description": text}}]
    answer = await client.post("/v1/chat/completions", json=asked)
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "context_length_exceeded"
    assert server.made_by == []


def test_texts_are_counted_wherever_they_are() -> None:
    assert text_size("abc", 100) == 3
    assert text_size([{"role": "user", "content": "abc"}], 100) == 1 + 5 + 8 + 4 + 3
    assert text_size([1] * 1000, 10_000) == 1001
    nested: Any = "abc"
    for _ in range(5000):
        nested = [nested]
    assert text_size(nested, 10_000) == 5003
    assert text_size(["a" * 60] * 1_000_000, 100) > 100

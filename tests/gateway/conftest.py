"""One attempt at a real gateway per test."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import httpx
import orjson
import pytest_asyncio

from harness.gateway.client import GatewayControl
from harness.gateway.server import GatewayServer

SAMPLING = {"temperature": 0.7, "top_p": 0.9, "max_tokens": 64}
ROLES = ("write_query", "check_query")
MESSAGES = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Wie spät ist es?"},
]

_numbers = itertools.count()


@dataclass
class Attempt:
    """One open attempt, called the way an agent calls."""

    gateway: GatewayServer
    control: GatewayControl
    http: httpx.AsyncClient
    rollout_id: str
    attempt_id: str = "0"

    def url(self, role: str = "write_query") -> str:
        return self.gateway.agent_url(self.rollout_id, self.attempt_id, role)

    async def call(self, role: str = "write_query", **params: Any) -> httpx.Response:
        body = {"model": "scripted", "messages": MESSAGES, **params}
        headers = {"authorization": f"Bearer {self.gateway.key}"}
        return await self.http.post(
            self.url(role) + "/chat/completions", json=body, headers=headers
        )

    async def open(self, **options: Any) -> Attempt:
        defaults: dict[str, Any] = {"sampling": SAMPLING, "timeout_s": 30, "roles": ROLES}
        await self.control.open_attempt(self.rollout_id, self.attempt_id, **(defaults | options))
        return self

    async def close(self) -> Any:
        return await self.control.close_attempt(self.rollout_id, self.attempt_id)


def error_code(response: httpx.Response) -> str:
    return str(response.json()["error"]["code"])


def events(response: httpx.Response) -> list[Any]:
    data = [line[6:] for line in response.text.splitlines() if line.startswith("data: ")]
    return [item if item == "[DONE]" else orjson.loads(item) for item in data]


@pytest_asyncio.fixture
async def attempt(gateway: GatewayServer, control: GatewayControl) -> AsyncIterator[Attempt]:
    async with httpx.AsyncClient(timeout=20) as http:
        yield Attempt(gateway, control, http, f"rollout-{next(_numbers)}")

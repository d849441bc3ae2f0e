"""The key of a policy server, under the web framework that vLLM's server uses."""

from __future__ import annotations

import importlib
import inspect
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Mount, Route, WebSocketRoute
from starlette.websockets import WebSocket

from harness_policy_server.key_check import KEY, KeyCheck

ANSWERING = ("/v1/chat/completions", "/metrics", "/health")


async def _answer(request: Request) -> PlainTextResponse:
    return PlainTextResponse("answered")


async def _accept(connection: WebSocket) -> None:
    await connection.accept()


@pytest.fixture
def application(monkeypatch: pytest.MonkeyPatch) -> Starlette:
    """An application with the middleware added as vLLM adds it: by name, without arguments."""
    monkeypatch.setenv(KEY, "right")
    routes: list[Any] = [Route(path, _answer, methods=["GET", "POST"]) for path in ANSWERING]
    app = Starlette(routes=[*routes, WebSocketRoute("/v1/realtime", _accept)])
    module, _, name = f"{KeyCheck.__module__}.{KeyCheck.__name__}".rpartition(".")
    loaded = getattr(importlib.import_module(module), name)
    assert inspect.isclass(loaded)  # vLLM takes a coroutine function for another kind
    app.add_middleware(loaded)  # type: ignore[arg-type]  # as vLLM does
    return app


@pytest.mark.parametrize("path", ANSWERING)
@pytest.mark.parametrize(
    "key, status",
    [
        ("Bearer right", 200),
        ("bearer right", 200),
        ("Bearer wrong", 401),
        ("Bearer \xe9", 401),
        ("Basic right", 401),
        ("right", 401),
        ("", 401),
    ],
)
async def test_only_the_health_of_a_server_is_open(
    application: Starlette, path: str, key: str, status: int
) -> None:
    headers = [(b"authorization", key.encode("latin-1"))] if key else []
    transport = httpx.ASGITransport(application)
    async with httpx.AsyncClient(transport=transport, base_url="http://policy") as client:
        answer = await client.post(path, headers=headers)
    assert answer.status_code == (200 if path == "/health" else status)
    if answer.status_code == 401:
        assert answer.json()["error"]["code"] == "invalid_api_key"


async def test_a_browser_may_ask_what_its_page_may_send(application: Starlette) -> None:
    application.add_middleware(CORSMiddleware, allow_origins=["*"], allow_methods=["*"])
    # As in vLLM, the key is checked before the application's other middleware.
    application.user_middleware.reverse()
    headers = {"origin": "http://page", "access-control-request-method": "POST"}
    transport = httpx.ASGITransport(application)
    async with httpx.AsyncClient(transport=transport, base_url="http://policy") as client:
        answer = await client.options("/v1/chat/completions", headers=headers)
    assert answer.status_code == 200 and answer.headers["access-control-allow-origin"] == "*"


async def test_other_questions_about_methods_need_the_key(application: Starlette) -> None:
    # Like Prometheus' application for `/metrics`, this one answers every method.
    application.router.routes.append(Mount("/counters", PlainTextResponse("counted")))
    application.add_middleware(CORSMiddleware, allow_origins=["*"], allow_methods=["*"])
    application.user_middleware.reverse()
    preflight = {"origin": "http://page", "access-control-request-method": "POST"}
    transport = httpx.ASGITransport(application)
    async with httpx.AsyncClient(transport=transport, base_url="http://policy") as client:
        assert (await client.options("/counters/")).status_code == 401
        answer = await client.options("/counters/", headers=preflight)
        assert answer.status_code == 200 and "counted" not in answer.text
        right = {"authorization": "Bearer right"}
        assert (await client.options("/counters/", headers=right)).text == "counted"


async def test_two_keys_in_one_request_are_refused(application: Starlette) -> None:
    headers = [(b"authorization", b"Bearer wrong"), (b"authorization", b"Bearer right")]
    transport = httpx.ASGITransport(application)
    async with httpx.AsyncClient(transport=transport, base_url="http://policy") as client:
        assert (await client.get("/metrics", headers=headers)).status_code == 401


@pytest.mark.parametrize("key, accepted", [(b"Bearer right", True), (b"Bearer wrong", False)])
async def test_connections_of_web_sockets_need_the_key(
    application: Starlette, key: bytes, accepted: bool
) -> None:
    scope = {"type": "websocket", "path": "/v1/realtime", "headers": [(b"authorization", key)]}
    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        return {"type": "websocket.connect"}

    async def send(message: Any) -> None:
        sent.append(message["type"])

    await application(scope, receive, send)
    assert sent == ["websocket.accept" if accepted else "websocket.close"]


@pytest.mark.parametrize("key", [None, ""])
def test_a_server_without_a_key_does_not_start(
    monkeypatch: pytest.MonkeyPatch, key: str | None
) -> None:
    monkeypatch.delenv(KEY, raising=False)
    if key is not None:
        monkeypatch.setenv(KEY, key)
    with pytest.raises(KeyError, match=KEY):
        KeyCheck(Starlette())

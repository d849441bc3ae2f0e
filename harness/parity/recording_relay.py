"""A relay between agent and gateway that records every request exactly as it was sent."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self
from urllib.parse import unquote, urlsplit

import aiohttp
import orjson
from aiohttp import web
from yarl import URL

from harness.gateway.client import GatewayControl
from harness.gateway.failures import Refusal
from harness.gateway.protocols import Spoken, Written, protocols
from harness.gateway.server import GatewayServer
from harness.util.branches import parted

_OWN_REQUEST_HEADERS = ("host", "content-length")
_OWN_ANSWER_HEADERS = ("content-length", "transfer-encoding", "connection", "date", "server")
"""Headers of one connection, which the relay's own client and server write themselves."""


@dataclass(slots=True)
class SentCall:
    """One request of an agent.

    Attributes:
        attempt: Rollout and attempt of its URL.
        role: Role of its URL, with its branch; empty if the path is no role URL.
        body: The request's JSON, or None if it was not JSON.
        raw: The request's bytes.
        status: The gateway's status; None while the request is in progress.
    """

    path: str
    attempt: tuple[str, str]
    role: str
    body: dict[str, Any] | None
    raw: bytes
    status: int | None = None

    @property
    def branch(self) -> str:
        """Name of the concurrent branch."""
        return parted(self.role)[1]


class RecordingRelay:
    """A relaying server in the running event loop. Use it as an async context manager.

    Args:
        gateway: A started gateway.
        written: Tool calls of the scripted model, for agents that use a protocol.
    """

    def __init__(self, gateway: GatewayServer, written: Written | None = None) -> None:
        self.calls: list[SentCall] = []
        self._written = written or Written()
        self._gateway = gateway
        self._runner: web.AppRunner | None = None
        self._session: aiohttp.ClientSession | None = None
        self.base_url = ""

    def of(self, rollout_id: str, attempt_id: str) -> list[SentCall]:
        """Return the calls of one attempt, and the calls without a recognizable rollout."""
        return [call for call in self.calls if call.attempt in ((rollout_id, attempt_id), ("", ""))]

    async def __aenter__(self) -> Self:
        app = web.Application(client_max_size=2**30)
        app.router.add_route("*", "/{path:.*}", self._relay)
        self._runner = web.AppRunner(
            app, access_log=None, handler_cancellation=True, shutdown_timeout=0.1
        )
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.base_url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"
        self._session = aiohttp.ClientSession(auto_decompress=False)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._session is not None and self._runner is not None
        await self._session.close()
        await self._runner.cleanup()

    def control(self) -> GatewayControl:
        """Return a control client of the gateway with role URLs that lead through this tap.

        The model server identifies a call's rollout by the request's `user`.
        """
        return _TappedControl(self._gateway, self.base_url)

    async def _relay(self, request: web.Request) -> web.Response:
        assert self._session is not None
        raw = await request.read()
        parts = [unquote(part) for part in urlsplit(request.raw_path).path.split("/")]
        call = SentCall(request.raw_path, ("", ""), "", _parse(raw), raw)
        if len(parts) in (7, 8) and parts[1] == "r" and parts[5] == "v1":
            spoken = protocols().get("/".join(parts[6:]))
            if spoken or parts[6:] == ["chat", "completions"]:
                call.attempt, call.role = (parts[2], parts[3]), parts[4]
            if spoken and call.body is not None:  # compared by meaning, as the gateway does
                with suppress(Refusal):  # the gateway refuses it
                    call.body = Spoken(spoken, self._written).asked(call.body)
        self.calls.append(call)
        headers = _without(request.headers, _OWN_REQUEST_HEADERS)
        url = URL(self._gateway.base_url + request.raw_path, encoded=True)
        async with self._session.request(request.method, url, data=raw, headers=headers) as answer:
            body = await answer.read()
            call.status = answer.status
            passed_on = _without(answer.headers, _OWN_ANSWER_HEADERS)
            return web.Response(body=body, status=answer.status, headers=passed_on)


class _TappedControl(GatewayControl):
    def __init__(self, gateway: GatewayServer, tap_url: str) -> None:
        real = gateway.control()
        self.__dict__.update(real.__dict__)
        self._tap_url = tap_url
        self._real_url = gateway.base_url

    async def open_attempt(
        self, rollout_id: str, attempt_id: str, *, sampling: Mapping[str, object], **rest: Any
    ) -> None:
        # Lets the scripted model identify the call; agents never see it.
        await super().open_attempt(
            rollout_id, attempt_id, sampling={**sampling, "user": rollout_id}, **rest
        )

    def agent_url(self, rollout_id: str, attempt_id: str, role: str) -> str:
        return (
            super()
            .agent_url(rollout_id, attempt_id, role)
            .replace(self._real_url, self._tap_url, 1)
        )


def _without(headers: Mapping[str, str], left_out: tuple[str, ...]) -> dict[str, str]:
    return {name: value for name, value in headers.items() if name.lower() not in left_out}


def _parse(raw: bytes) -> dict[str, Any] | None:
    try:
        body = orjson.loads(raw)
    except orjson.JSONDecodeError:
        return None
    return body if isinstance(body, dict) else None

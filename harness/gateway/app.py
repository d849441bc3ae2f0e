"""The ASGI application: keys, routes, and the control of upstreams and attempts."""

from __future__ import annotations

import base64
import hmac
import logging
import os
import time
from typing import Any
from urllib.parse import unquote

import orjson
from starlette.types import Receive, Scope, Send

from harness.gateway.attempts import AttemptLog, Attempts
from harness.gateway.demonstrations import checked_demonstrations
from harness.gateway.failures import Refusal
from harness.gateway.forcing import RESERVED
from harness.gateway.protocols import Spoken, protocols
from harness.gateway.relay import Relay
from harness.gateway.request import Request
from harness.gateway.settings import GatewaySettings
from harness.gateway.upstreams import Pools, UpstreamPool
from harness.util.branches import parted

logger = logging.getLogger(__name__)


class GatewayApp:
    """Agent-facing routes under `/r/`, control routes under `/control/`, and `/health`."""

    def __init__(self, settings: GatewaySettings) -> None:
        self._settings = settings
        self._pools = Pools(settings.upstream_concurrency, settings.queue_size, settings.max_calls)
        self._relay = Relay(settings, self._pools)
        self._attempts = Attempts(settings)
        self._key = f"Bearer {settings.key}".encode()
        self._control_key = f"Bearer {settings.control_key}".encode()
        self._began = time.monotonic()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, or the server's start and stop."""
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
        elif scope["type"] == "http":
            try:
                await self._route(scope, receive, send)
            except Refusal as refusal:
                await _reply(send, refusal.status, refusal.body)
            except Exception as error:
                logger.exception("%s %s", scope["method"], scope["path"])
                bug = Refusal("gateway_error", f"{type(error).__name__}: {error}")
                await _reply(send, bug.status, bug.body)

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        await receive()
        await self._relay.start()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await self._relay.stop()
        await send({"type": "lifespan.shutdown.complete"})

    async def _route(self, scope: Scope, receive: Receive, send: Send) -> None:
        method = scope["method"]
        # From the raw path, so that an encoded slash stays inside its segment.
        raw = scope["raw_path"].partition(b"?")[0].decode("latin-1").split("/")[1:]
        match [method, *(unquote(segment) if "%" in segment else segment for segment in raw)]:
            case ["POST", "r", rollout_id, attempt_id, who, "v1", "chat", "completions"]:
                log, by = self._caller(scope, rollout_id, attempt_id, who)
                await self._relay.serve(log, by, self._request(scope, receive), send)
            case ["POST", "r", rollout_id, attempt_id, who, "v1", path] if (
                spoken := protocols().get(path)
            ):
                log, by = self._caller(scope, rollout_id, attempt_id, who)
                request = self._request(scope, receive, Spoken(spoken, log.written))
                await self._relay.serve(log, by, request, send)
            case ["GET", "r", rollout_id, attempt_id, who, "v1", "models"]:
                _, (role, _) = self._caller(scope, rollout_id, attempt_id, who)
                model = {
                    "id": self._pools.of(role).model,
                    "object": "model",
                    "created": 0,
                    "owned_by": "harness",
                }
                await _reply(send, 200, orjson.dumps({"object": "list", "data": [model]}))
            case [_, "control", *rest]:
                _authorize(scope, self._control_key)
                await _reply(
                    send, 200, await self._control([method, *rest], self._request(scope, receive))
                )
            case ["GET", "health"]:
                await _reply(send, 200, b'{"status":"ok"}')
            case _:
                raise Refusal("not_found", f"no route {method} {scope['path'][:200]}")

    def _request(self, scope: Scope, receive: Receive, spoken: Spoken | None = None) -> Request:
        return Request(scope, receive, self._settings.max_body_bytes, spoken)

    def _caller(
        self, scope: Scope, rollout_id: str, attempt_id: str, who: str
    ) -> tuple[AttemptLog, tuple[str, str]]:
        _authorize(scope, self._key)
        log = self._attempts.get(rollout_id, attempt_id)
        role, branch = parted(who)
        if role not in log.roles:
            roles = ", ".join(sorted(log.roles))
            raise Refusal(
                "unknown_role", f"the attempt has no role {role!r}; its roles are {roles}"
            )
        return log, (role, branch)

    async def _control(self, path: list[str], request: Request) -> bytes:
        match path:
            case ["PUT", "upstreams"]:
                return orjson.dumps(_set_upstreams(self._pools.policy, await request.json()))
            case ["PUT", "upstreams", role]:
                return orjson.dumps(_set_upstreams(self._pools.own(role), await request.json()))
            case ["PUT", "attempts", rollout_id, attempt_id]:
                return orjson.dumps(
                    self._open_attempt(rollout_id, attempt_id, await request.json())
                )
            case ["DELETE", "attempts", rollout_id, attempt_id]:
                log = self._attempts.get(rollout_id, attempt_id)
                log.close()
                # Serialize before removing the attempt, so that a failure here loses no records.
                records = orjson.dumps({"transitions": log.transitions, "failures": log.failures})
                self._attempts.close(rollout_id, attempt_id)
                self._pools.forget(rollout_id)
                return records
            case ["GET", "stats"]:
                return orjson.dumps(self._stats())
        raise Refusal("not_found", f"no control route {' '.join(path)}")

    def _open_attempt(
        self, rollout_id: str, attempt_id: str, asked: dict[str, Any]
    ) -> dict[str, Any]:
        sampling, timeout_s, roles = (
            asked.get("sampling"),
            asked.get("timeout_s"),
            asked.get("roles"),
        )
        if not isinstance(sampling, dict):
            raise Refusal("bad_request", "sampling must be an object")
        if reserved := RESERVED & sampling.keys():
            raise Refusal("bad_request", f"sampling may not contain {', '.join(sorted(reserved))}")
        if not isinstance(timeout_s, int | float) or isinstance(timeout_s, bool) or timeout_s <= 0:
            raise Refusal("bad_request", "timeout_s must be a number above 0")
        are_names = isinstance(roles, list) and all(isinstance(role, str) for role in roles)
        if not are_names or not roles:
            raise Refusal("bad_request", "roles must be a list of names")
        demonstrations = checked_demonstrations(asked.get("demonstrations", {}))
        log = AttemptLog(
            rollout_id, attempt_id, sampling, timeout_s, frozenset(roles), demonstrations
        )
        self._attempts.open(log)
        return {"rollout_id": rollout_id, "attempt_id": attempt_id}

    def _stats(self) -> dict[str, Any]:
        failures = dict(self._relay.outcomes)
        return {
            "pid": os.getpid(),
            "uptime_s": time.monotonic() - self._began,
            "cpu_s": time.process_time(),
            "open_attempts": len(self._attempts),
            "queued": self._pools.queued,
            "transitions": failures.pop("transition", 0),
            "failures": failures,
            "rate_limits": self._relay.rate_limits,
            "rate_limit_s": self._relay.rate_limit_s,
            "upstreams": self._pools.stats(),
        }


def _set_upstreams(pool: UpstreamPool, asked: dict[str, Any]) -> dict[str, Any]:
    try:
        upstreams = [(str(row["base_url"]), row.get("api_key")) for row in asked["upstreams"]]
        model, token_ids = asked["model"], asked["token_ids"]
    except (KeyError, TypeError, AttributeError) as error:
        raise Refusal(
            "bad_request", "needs upstreams (base_url, api_key), model, token_ids"
        ) from error
    if not isinstance(model, str) or not isinstance(token_ids, bool):
        raise Refusal("bad_request", "model must be text and token_ids true or false")
    for url, _ in upstreams:
        if not url.startswith(("http://", "https://")):
            raise Refusal(
                "bad_request", f"base_url must begin with http:// or https://, not {url!r}"
            )
    pool.replace(upstreams, model, token_ids)
    return {"upstreams": len(upstreams)}


def _authorize(scope: Scope, expected: bytes) -> None:
    headers = dict(scope["headers"])
    # Some clients send the key in a header of its own, without `Bearer`.
    given = headers.get(b"authorization") or b"Bearer " + headers.get(b"x-api-key", b"")
    if given.startswith(b"Basic "):
        given = _bearer(given)
    if not hmac.compare_digest(given, expected):
        raise Refusal("unauthorized", "the bearer key is missing or wrong")


def _bearer(basic: bytes) -> bytes:
    """Return the password of basic authentication, as clients send a key in their base URL."""
    try:
        credentials = base64.b64decode(basic.removeprefix(b"Basic "), validate=True)
    except ValueError:
        return b""
    return b"Bearer " + credentials.partition(b":")[2]


async def _reply(send: Send, status: int, body: bytes) -> None:
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})

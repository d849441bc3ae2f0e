"""Check the key of requests to a policy server, harness's own or vLLM's.

vLLM has a variable for a key of its own, `VLLM_API_KEY`. vLLM 0.24 hashes that variable into the
name of its cache of compiled models (`vllm.envs.compile_factors`). A server with a new key would
find no cache and compile the model again: 20 s for a policy of half a billion parameters.
"""

from __future__ import annotations

import hmac
import json
import os
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

KEY = "HARNESS_POLICY_KEY"
"""Environment variable of a policy server with the key that it requires."""
OPEN_PATH = "/health"
"""The only path that needs no key."""
WRONG_KEY = {"error": {"message": "wrong or missing bearer key", "code": "invalid_api_key"}}
POLICY_VIOLATION = 1008
"""Code of RFC 6455 for a refused WebSocket connection."""

PREFLIGHT = {b"origin", b"access-control-request-method"}
"""Headers of a request in which a browser asks what a page may send."""

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Message, Receive, Send], Awaitable[None]]


class KeyCheck:
    """ASGI middleware that answers 401 to requests without the key.

    vLLM's server loads it by name: `--middleware harness_policy_server.key_check.KeyCheck`.

    Args:
        key: By default that of the environment.

    Raises:
        KeyError: No key is given, and the environment has none, or an empty one.
    """

    def __init__(self, app: Application, key: str = "") -> None:
        self._app = app
        self._key = (key or os.environ[KEY]).encode()
        if not self._key:
            raise KeyError(f"{KEY} is empty")

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if self._permits(scope):
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": POLICY_VIOLATION})
        else:
            content = [(b"content-type", b"application/json")]
            await send({"type": "http.response.start", "status": 401, "headers": content})
            await send({"type": "http.response.body", "body": json.dumps(WRONG_KEY).encode()})

    def _permits(self, scope: Message) -> bool:
        # Other types, such as `lifespan`, come from the server itself.
        if scope["type"] not in ("http", "websocket") or scope["path"] == OPEN_PATH:
            return True
        # Browsers send no key when they ask what a page may send. The CORS middleware of vLLM's
        # server answers that itself. Any other OPTIONS request reaches the application: there,
        # Prometheus' `/metrics` answers every method.
        names = {name for name, _ in scope["headers"]}
        if scope.get("method") == "OPTIONS" and names >= PREFLIGHT:
            return True
        given = [value for name, value in scope["headers"] if name == b"authorization"]
        if len(given) != 1:
            return False
        scheme, _, key = given[0].partition(b" ")
        # RFC 9110 ignores the case of the scheme.
        return scheme.lower() == b"bearer" and hmac.compare_digest(key, self._key)

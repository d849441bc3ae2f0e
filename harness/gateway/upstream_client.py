"""Send requests to upstreams, and find out what a refusal was about."""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import aiohttp
import orjson

from harness.gateway.answers import check_no_error
from harness.gateway.attempts import Call
from harness.gateway.failures import Refusal, UpstreamStatus
from harness.gateway.forcing import PASSED, ForcedRequest
from harness.gateway.upstreams import Upstream
from harness.gateway.wire import parse

logger = logging.getLogger(__name__)

SHORT_CHARS = 16
"""Characters of each message when a prompt's length is in question."""


class UpstreamClient:
    """The connections to all upstreams.

    Args:
        connect_timeout_s: Time to open a connection.
    """

    def __init__(self, connect_timeout_s: float) -> None:
        self._connect_timeout_s = connect_timeout_s
        self._session: aiohttp.ClientSession | None = None
        self._takes: set[tuple[str, str, frozenset[str]]] = set()
        """Upstream, model and names of the run's own parameters, for each request that was
        answered."""

    async def start(self) -> None:
        """Open the connection pool; needs the running loop."""
        self._session = aiohttp.ClientSession(
            # Shorter than the 5 s after which uvicorn, and so vLLM, closes an idle connection: a
            # request on a closing connection fails, and it must not be sent twice.
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=3.0),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=self._connect_timeout_s),
            auto_decompress=True,
            trust_env=False,
        )

    async def stop(self) -> None:
        """Close the connection pool."""
        if self._session is not None:
            await self._session.close()

    def note_taken(self, upstream: Upstream, request: ForcedRequest) -> None:
        """Note that an upstream answered a request."""
        self._takes.add(_ours(upstream, request))

    async def takes_shorter(self, call: Call, upstream: Upstream, request: ForcedRequest) -> bool:
        """Return whether the upstream answers short messages, so that it refuses the length."""
        shorter = {**request.body, "stream": False}
        shorter.pop("stream_options", None)
        shorter["messages"] = [_shortened(message) for message in request.body["messages"]]
        return await self._answers(call, upstream, replace(request, body=shorter))

    async def takes_ours(self, call: Call, upstream: Upstream, request: ForcedRequest) -> bool:
        """Return whether the upstream accepts the run's own parameters.

        If so, the agent caused the refusal.

        Probes the upstream once per set of parameters, unless it has answered a call with them.
        """
        ours = _ours(upstream, request)
        if ours not in self._takes:
            own = {name: value for name, value in request.body.items() if name not in PASSED}
            asked = {**own, "messages": [{"role": "user", "content": "Hello."}], "max_tokens": 1}
            if await self._answers(call, upstream, replace(request, body=asked)):
                self._takes.add(ours)
        return ours in self._takes

    async def _answers(self, call: Call, upstream: Upstream, request: ForcedRequest) -> bool:
        try:
            async with self.post(call, upstream, request) as response:
                raw = await response.read()
            check_no_error(parse(raw), raw)
            return True
        except Refusal as refusal:
            logger.info("%s does not answer a probe: %s", upstream.base_url, refusal.detail)
            return False

    @asynccontextmanager
    async def post(
        self, call: Call, upstream: Upstream, request: ForcedRequest
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Send the request and wait for the header of the answer.

        Raises:
            Refusal: No connection, no answer, or an error status.
        """
        assert self._session is not None
        began = time.perf_counter()
        data = orjson.dumps(request.body)
        try:
            async with self._session.post(
                upstream.url, data=data, headers=upstream.headers, allow_redirects=False
            ) as response:
                call.upstream_s += time.perf_counter() - began
                if response.status != 200:
                    raise UpstreamStatus(
                        response.status,
                        await response.read(),
                        response.headers.get("content-type", "application/octet-stream"),
                        response.headers.get("retry-after"),
                    )
                yield response
        except aiohttp.ConnectionTimeoutError as error:
            upstream.mark_down()
            message = f"no connection to {upstream.base_url} within {self._connect_timeout_s:g} s"
            raise Refusal("connect_timeout", message) from error
        except aiohttp.ClientConnectorError as error:
            upstream.mark_down()
            raise Refusal(
                "upstream_unreachable", f"no connection to {upstream.base_url}: {error.os_error}"
            ) from error
        except aiohttp.ClientPayloadError as error:
            message = f"{upstream.base_url} broke off its answer: {error}"
            raise Refusal("upstream_dropped", message, upstream_status=200) from error
        except aiohttp.ClientError as error:
            message = f"no answer from {upstream.base_url}: {type(error).__name__}: {error}"
            raise Refusal("upstream_unreachable", message) from error


def _shortened(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return a message with the beginning of its text."""
    short = dict(message)
    content = message.get("content")
    if isinstance(content, str):
        short["content"] = content[:SHORT_CHARS]
    elif isinstance(content, list):
        short["content"] = [_shortened_part(part) for part in content]
    return short


def _shortened_part(part: object) -> object:
    """Return a part of a message's content with the beginning of its text, if it has one."""
    if isinstance(part, dict) and isinstance(part.get("text"), str):
        return {**part, "text": part["text"][:SHORT_CHARS]}
    return part


def _ours(upstream: Upstream, request: ForcedRequest) -> tuple[str, str, frozenset[str]]:
    """Return the upstream, the model, and the names of the parameters that the run added."""
    return upstream.base_url, request.body["model"], frozenset(request.body.keys() - PASSED)

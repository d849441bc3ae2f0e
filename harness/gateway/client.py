"""A client of a gateway's control routes, for any process with its URL and control key."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote

import aiohttp
import orjson
from yarl import URL

from harness.errors import EndpointError
from harness.records import CallFailure, Demonstrations, Transition
from harness.util.endpoints import Endpoint


def agent_url(base_url: str, rollout_id: str, attempt_id: str, role: str) -> str:
    """The OpenAI `base_url` for one role of one attempt; ends in `/v1`."""
    path = "/".join(quote(part, safe="") for part in (rollout_id, attempt_id, role))
    return f"{base_url.rstrip('/')}/r/{path}/v1"


class GatewayControl:
    """Set upstreams, open and close attempts.

    An async context manager; use it within one event loop.

    Every method raises `EndpointError` when the gateway does not answer, and `RuntimeError` when it
    refuses (an attempt opened twice, a wrong key: bugs of the caller).
    """

    def __init__(self, base_url: str, control_key: str, *, timeout_s: float = 30.0) -> None:
        self.base_url = base_url.rstrip("/")
        self._headers = {
            "authorization": f"Bearer {control_key}",
            "content-type": "application/json",
        }
        self._timeout_s = timeout_s
        self._session: aiohttp.ClientSession | None = None

    async def set_upstreams(
        self,
        upstreams: Sequence[str] | Sequence[Mapping[str, object]],
        *,
        model: str,
        token_ids: bool,
        role: str | None = None,
    ) -> None:
        """Set the run's model servers, also while calls are in progress.

        Args:
            upstreams: Base URLs ending in `/v1`, or mappings with `base_url` and `api_key`.
            model: The model name that every call gets.
            token_ids: Whether the servers report token ids on request, as vLLM does.
            role: The role that these servers answer. None: they serve the policy.
        """
        rows = [{"base_url": row} if isinstance(row, str) else dict(row) for row in upstreams]
        path = "upstreams" if role is None else f"upstreams/{quote(role, safe='')}"
        await self._send("PUT", path, {"upstreams": rows, "model": model, "token_ids": token_ids})

    async def point(
        self, endpoint: Endpoint | None = None, roles: Mapping[str, Endpoint] | None = None
    ) -> None:
        """Send calls to one endpoint, and those of the named roles to their own endpoints."""
        for role, server in ((None, endpoint), *(roles or {}).items()):
            # In a training the policy's servers are set later, once they have started.
            if server is not None:
                upstream = {"base_url": server.base_url, "api_key": server.api_key}
                await self.set_upstreams(
                    [upstream], model=server.model, token_ids=server.token_ids, role=role
                )

    async def open_attempt(
        self,
        rollout_id: str,
        attempt_id: str,
        *,
        sampling: Mapping[str, object],
        timeout_s: float,
        roles: Iterable[str],
        demonstrations: Demonstrations | None = None,
    ) -> None:
        """Register an attempt, before its agent starts.

        Args:
            sampling: Sampling parameters to force on every call.
            timeout_s: Deadline of the attempt in seconds.
            roles: Roles that the agent may use.
            demonstrations: Messages to insert into the calls of each role.
        """
        attempt: dict[str, object] = {
            "sampling": dict(sampling),
            "timeout_s": timeout_s,
            "roles": list(roles),
        }
        if demonstrations:
            attempt["demonstrations"] = demonstrations
        await self._send("PUT", _attempt(rollout_id, attempt_id), attempt)

    async def close_attempt(
        self, rollout_id: str, attempt_id: str
    ) -> tuple[list[Transition], list[CallFailure]]:
        """Close an attempt and return its records in order.

        The gateway cancels calls in progress and refuses later ones.
        """
        answer = await self._send("DELETE", _attempt(rollout_id, attempt_id))
        return (
            [_transition(row) for row in answer["transitions"]],
            [CallFailure(**row) for row in answer["failures"]],
        )

    async def stats(self) -> dict[str, Any]:
        """Counts of calls, failures by code, the queue and the upstreams."""
        return await self._send("GET", "stats")

    def agent_url(self, rollout_id: str, attempt_id: str, role: str) -> str:
        """The OpenAI `base_url` for one role of one attempt."""
        return agent_url(self.base_url, rollout_id, attempt_id, role)

    async def aclose(self) -> None:
        """Close the connections."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.aclose()

    async def _send(
        self, method: str, path: str, body: Mapping[str, object] | None = None
    ) -> dict[str, Any]:
        if self._session is None:
            timeout = aiohttp.ClientTimeout(total=self._timeout_s)
            self._session = aiohttp.ClientSession(headers=self._headers, timeout=timeout)
        url = f"{self.base_url}/control/{path}"
        data = None if body is None else orjson.dumps(body)
        try:
            # The path is quoted already; yarl would undo an encoded slash.
            async with self._session.request(method, URL(url, encoded=True), data=data) as response:
                answer: dict[str, Any] = orjson.loads(await response.read())
        except (aiohttp.ClientError, TimeoutError) as error:
            raise EndpointError(
                f"the gateway at {self.base_url} does not answer: {error!r}"
            ) from error
        if response.status != 200:
            raise RuntimeError(f"the gateway refused {method} {path}: {answer['error']['message']}")
        return answer


def _attempt(rollout_id: str, attempt_id: str) -> str:
    return f"attempts/{quote(rollout_id, safe='')}/{quote(attempt_id, safe='')}"


def _transition(row: Mapping[str, Any]) -> Transition:
    fields = dict(row)
    # JSON gives lists, but records are compared and hashed as tuples.
    for name in (
        "messages",
        "prompt_ids",
        "response_ids",
        "logprobs",
        "offered_tools",
        "tool_calls",
    ):
        if fields.get(name) is not None:
            fields[name] = tuple(fields[name])
    return Transition(**fields)

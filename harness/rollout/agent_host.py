"""The host of a runner: it makes attempts at the rollouts that the queue assigns to it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from harness.contracts.queue import FinishedAttempt, TakenRollout
from harness.contracts.toolbox import Agent
from harness.errors import EndpointError
from harness.gateway.client import GatewayControl
from harness.records import INFRASTRUCTURE_OUTCOMES
from harness.rollout.host import run_attempt
from harness.rollout.request import RolloutRequest
from harness.util import start_trace

if TYPE_CHECKING:
    import httpx

UNREACHED_S = 1.0
"""Seconds to hold an attempt without an answer from the gateway, so that a run with a dead gateway
ends first.
"""


class AgentHost:
    """A host with one agent, which follows `harness.contracts.queue.Host`.

    Args:
        name: The agent's name; requests for another agent are refused. Empty: all are accepted.
    """

    def __init__(self, agent: Agent, control: GatewayControl, name: str = "") -> None:
        self._agent = agent
        self._name = name
        self._control = control
        self._http: httpx.AsyncClient | None = None

    async def attempt(self, taken: TakenRollout) -> FinishedAttempt:
        """Make one attempt, with the number of retries that the request allows.

        Raises:
            EndpointError: The gateway did not answer.
            AssertionError: The request is for another agent.
        """
        start_trace.mark("first rollout")
        request = RolloutRequest.parse(taken.request)
        if self._name and request.agent and request.agent != self._name:
            raise AssertionError(
                f"the queue gave a rollout of {request.agent} to a runner with {self._name}"
            )
        try:
            attempt = await run_attempt(
                self._agent,
                request,
                taken.rollout_id,
                taken.attempt_id,
                self._control,
                taken.policy.api_key or "",
                taken.policy.model,
                self._client(),
            )
        except EndpointError:
            await asyncio.sleep(UNREACHED_S)
            raise
        retries = request.retries if attempt.outcome in INFRASTRUCTURE_OUTCOMES else 0
        return FinishedAttempt(attempt, retries)

    def _client(self) -> httpx.AsyncClient:
        """Return the client of all attempts, made in the event loop that uses it."""
        import httpx

        # No limit on connections: the time that agents wait for one would appear in no record.
        # The gateway limits calls instead.
        if self._http is None:
            limits = httpx.Limits(max_connections=None, max_keepalive_connections=256)
            self._http = httpx.AsyncClient(limits=limits, timeout=None, trust_env=False)
        return self._http

    async def aclose(self) -> None:
        """Close the connections to the gateway."""
        await self._control.aclose()
        if self._http is not None:
            await self._http.aclose()

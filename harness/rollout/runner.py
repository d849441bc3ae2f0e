"""agentlightning's side of a worker: a `LitAgent` around an agent, and a concurrent runner."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable
from typing import Any

import agentlightning as agl
from agentlightning.execution.events import ExecutionEvent
from agentlightning.tracer.dummy import DummyTracer
from agentlightning.types import AttemptedRollout, NamedResources, Rollout

from harness.contracts.toolbox import Agent
from harness.errors import EndpointError, RolloutError
from harness.gateway.client import GatewayControl
from harness.records import INFRASTRUCTURE_OUTCOMES
from harness.rollout.host import run_attempt
from harness.rollout.request import RolloutRequest
from harness.rollout.spans import to_spans
from harness.rollout.store import RunStore, StoreClient
from harness.util import start_trace

logger = logging.getLogger(__name__)

IDLE_POLL_S = 0.05
"""agentlightning's queue has no way to wait: an idle runner asks this often."""
POLICY_RESOURCE = "policy"
Input = dict[str, Any]
"""Of a rollout: a request, as `RolloutRequest.dump` has it."""
UNREACHED_S = 1.0
"""Seconds to hold an attempt without an answer from the gateway, so that a run with a dead gateway
ends first.
"""


class GatewayTracer(DummyTracer):
    """Trace nothing in this process: the gateway records every call of every framework."""

    def init(self, *args: object, **kwargs: object) -> None: ...
    def init_worker(self, *args: object, **kwargs: object) -> None: ...
    def teardown(self, *args: object, **kwargs: object) -> None: ...
    def teardown_worker(self, *args: object, **kwargs: object) -> None: ...

    @contextlib.asynccontextmanager
    async def trace_context(self, *args: object, **kwargs: object) -> AsyncIterator[None]:
        yield None

    def get_last_trace(self) -> list[Any]:
        return []


class PluginAgent(agl.LitAgent[Input]):
    """A plugin's agent as agentlightning runs it: toolbox in, spans out.

    The reward is given elsewhere.
    """

    def __init__(self, agent: Agent, control: GatewayControl) -> None:
        super().__init__()
        self.agent = agent
        self.control = control
        self._http: Any = None

    async def aclose(self) -> None:
        """Close the connections to the gateway."""
        await self.control.aclose()
        if self._http is not None:
            await self._http.aclose()

    def is_async(self) -> bool:
        return True

    async def training_rollout_async(
        self, task: Input, resources: NamedResources, rollout: Rollout
    ) -> None:
        await self._run(task, resources, rollout)

    async def validation_rollout_async(
        self, task: Input, resources: NamedResources, rollout: Rollout
    ) -> None:
        await self._run(task, resources, rollout)

    async def _run(self, task: Input, resources: NamedResources, rollout: Rollout) -> None:
        import httpx

        start_trace.mark("first rollout")
        assert isinstance(rollout, AttemptedRollout)
        request = RolloutRequest.parse(task)
        policy = resources[POLICY_RESOURCE]
        assert isinstance(policy, agl.LLM)
        # Made in the event loop that uses it. Connections have no limit here, since agents would
        # wait for them where no record shows it; the gateway bounds calls.
        if self._http is None:
            limits = httpx.Limits(max_connections=None, max_keepalive_connections=256)
            self._http = httpx.AsyncClient(limits=limits, timeout=None, trust_env=False)
        try:
            attempt = await run_attempt(
                self.agent,
                request,
                rollout.rollout_id,
                rollout.attempt.attempt_id,
                self.control,
                policy.api_key or "",
                policy.model,
                self._http,
            )
        except EndpointError:
            await asyncio.sleep(UNREACHED_S)
            raise
        except asyncio.CancelledError as error:  # agentlightning would take it for done
            raise RolloutError("the runner was stopped") from error
        store = self.get_runner().get_store()
        await store.add_many_spans(to_spans(attempt))
        if attempt.outcome in INFRASTRUCTURE_OUTCOMES:
            earlier = await store.query_attempts(rollout.rollout_id)
            # Those that were lost with their worker do not count: it was not their fault.
            failed = [other for other in earlier if other.status == "failed"]
            if len(failed) < request.retries:
                # The store queues it again.
                raise RolloutError(f"{attempt.outcome}: {attempt.detail}")


class ConcurrentRunner(agl.LitAgentRunner[Input]):
    """`LitAgentRunner` that keeps up to `concurrency` rollouts under way in one event loop."""

    def __init__(self, concurrency: int, heartbeat: Callable[[], None]) -> None:
        super().__init__(GatewayTracer(), heartbeat_interval=15.0, poll_interval=IDLE_POLL_S)
        self._concurrency = concurrency
        self._beat = heartbeat

    async def iter(self, *, event: ExecutionEvent | None = None) -> None:
        """Take rollouts from the store until `event` is set, then cancel what is under way."""
        store = self.get_store()
        assert isinstance(store, RunStore | StoreClient)
        stop_heartbeat = self._start_heartbeat_loop(store)
        running: set[asyncio.Task[str]] = set()
        beat = asyncio.create_task(self._heartbeat())
        try:
            while event is None or not event.is_set():
                free = self._concurrency - len(running)
                taken: list[AttemptedRollout] = []
                if free:
                    taken = list(await store.take(self.get_worker_id(), len(running), free))
                for rollout in taken:
                    task = asyncio.create_task(self._step_impl(rollout))
                    running.add(task)
                    task.add_done_callback(running.discard)
                if not free:
                    await asyncio.wait(
                        running, timeout=IDLE_POLL_S, return_when=asyncio.FIRST_COMPLETED
                    )
                elif not taken:
                    await asyncio.sleep(IDLE_POLL_S)
        finally:
            beat.cancel()
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)
            if stop_heartbeat is not None:
                await stop_heartbeat()
            agent = self.get_agent()
            if isinstance(agent, PluginAgent):
                await agent.aclose()

    async def _heartbeat(self) -> None:
        while True:
            self._beat()
            await asyncio.sleep(1.0)

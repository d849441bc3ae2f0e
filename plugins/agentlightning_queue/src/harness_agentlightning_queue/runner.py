"""The runner's side of the queue: a `LitAgent` around a host, and a concurrent runner."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import agentlightning as agl
from agentlightning.execution.events import ExecutionEvent
from agentlightning.tracer.dummy import DummyTracer
from agentlightning.types import AttemptedRollout, NamedResources, Rollout

from harness.contracts.queue import Host, TakenRollout
from harness.errors import RolloutError
from harness.util.endpoints import Endpoint
from harness_agentlightning_queue.queue import POLICY_RESOURCE
from harness_agentlightning_queue.spans import to_spans
from harness_agentlightning_queue.store import RunStore, StoreClient

IDLE_POLL_S = 0.05
"""Seconds between polls of an idle runner, since agentlightning's queue has no way to wait."""
Input = dict[str, Any]
"""Of a rollout: a request, as it was enqueued."""


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


class HostAgent(agl.LitAgent[Input]):
    """A host as agentlightning runs it: resources in, spans out.

    The reward is given elsewhere.
    """

    def __init__(self, host: Host) -> None:
        super().__init__()
        self.host = host

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
        assert isinstance(rollout, AttemptedRollout)
        llm = resources[POLICY_RESOURCE]
        assert isinstance(llm, agl.LLM)
        policy = Endpoint(llm.endpoint, llm.model, llm.api_key)
        taken = TakenRollout(rollout.rollout_id, rollout.attempt.attempt_id, task, policy)
        try:
            finished = await self.host.attempt(taken)
        except asyncio.CancelledError as error:  # agentlightning would count it as done
            raise RolloutError("the runner was stopped") from error
        attempt = finished.attempt
        store = self.get_runner().get_store()
        await store.add_many_spans(to_spans(attempt))
        if finished.retries:
            earlier = await store.query_attempts(rollout.rollout_id)
            # Attempts that were lost with their worker do not count as retries.
            failed = [other for other in earlier if other.status == "failed"]
            if len(failed) < finished.retries:
                # The store queues it again.
                raise RolloutError(f"{attempt.outcome}: {attempt.detail}")


class ConcurrentRunner(agl.LitAgentRunner[Input]):
    """`LitAgentRunner` that keeps up to `concurrency` rollouts under way in one event loop.

    Args:
        agent: The agent of the rollouts that it takes.
    """

    def __init__(self, concurrency: int, heartbeat: Callable[[], None], agent: str = "") -> None:
        super().__init__(GatewayTracer(), heartbeat_interval=15.0, poll_interval=IDLE_POLL_S)
        self._concurrency = concurrency
        self._beat = heartbeat
        self._takes = agent

    async def iter(self, *, event: ExecutionEvent | None = None) -> None:
        """Take rollouts from the store until `event` is set, then cancel those in progress."""
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
                    offered = await store.take(
                        self.get_worker_id(), len(running), free, self._takes
                    )
                    taken = list(offered)
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
        except asyncio.CancelledError:
            if isinstance(store, StoreClient):
                store.stopping = True
            raise
        finally:
            beat.cancel()
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)
            if stop_heartbeat is not None:
                await stop_heartbeat()
            agent = self.get_agent()
            if isinstance(agent, HostAgent):
                await agent.host.aclose()

    async def _heartbeat(self) -> None:
        while True:
            self._beat()
            await asyncio.sleep(1.0)

"""The queue backend on agentlightning's store: `LightningBackend`."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any

import agentlightning as agl
from agentlightning.execution.shared_memory import SharedMemoryExecutionStrategy

from harness.contracts.queue import DryRun, Host, Queue, QueueBackend, RunQueue
from harness.errors import PluginError
from harness.util.endpoints import Endpoint
from harness_agentlightning_queue.queue import LightningQueue, LocalQueue, resources_of
from harness_agentlightning_queue.runner import ConcurrentRunner, GatewayTracer, HostAgent
from harness_agentlightning_queue.spans import from_spans
from harness_agentlightning_queue.store import RunStore, StoreClient, quiet


class LightningBackend(QueueBackend):
    """Queues in agentlightning's store."""

    def connect(self, url: str, key: str = "") -> LightningQueue:
        return LightningQueue(StoreClient(url, key))

    def open(self, host: str) -> LocalQueue:
        return LocalQueue(host)

    def execute(self, queue: RunQueue, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        if not isinstance(queue, LightningQueue):
            kind = type(queue)
            raise PluginError(
                f"{kind.__module__}:{kind.__name__} does not work with the queue agentlightning. "
                "Uninstall the plugin of one of them, or leave out rollout.store"
            )
        trainer = agl.Trainer(
            algorithm=_Work(work),
            tracer=GatewayTracer(),
            store=queue.store,
            # The queue starts the store's server itself: on a free loopback port, and without its
            # log on stdout.
            strategy=agl.ClientServerExecutionStrategy(role="algorithm", managed_store=False),
        )
        quiet()
        trainer.fit(agl.LitAgent())

    async def run_rollouts(
        self,
        queue: Queue,
        host: Host,
        number: int,
        concurrency: int,
        heartbeat: Callable[[], None],
        agent: str = "",
    ) -> None:
        assert isinstance(queue, LightningQueue), f"{type(queue).__name__} has no store"
        # Failures are typed and written to the store; agentlightning's tracebacks would only repeat
        # them.
        logging.getLogger("agentlightning").setLevel(logging.CRITICAL)
        runner = ConcurrentRunner(concurrency, heartbeat, agent)
        runner.init(HostAgent(host))
        runner.init_worker(number, queue.store)
        await runner.iter()

    def dry_run(
        self,
        requests: Sequence[Mapping[str, Any]],
        host: Host,
        policy: Endpoint,
        concurrency: int,
    ) -> list[DryRun]:
        """Run a few requests through agentlightning's `Trainer.dev`."""
        logging.getLogger("agentlightning").setLevel(logging.CRITICAL)
        store = RunStore(thread_safe=True)
        trainer = agl.Trainer(
            n_runners=1,
            algorithm=agl.Baseline(polling_interval=0.1, train_split=0.5, span_verbosity="none"),
            tracer=GatewayTracer(),
            runner=ConcurrentRunner(concurrency, lambda: None),
            store=store,
            strategy=SharedMemoryExecutionStrategy(main_thread="algorithm", managed_store=False),
            initial_resources=resources_of(policy),
        )
        asked = [dict(request) for request in requests]
        trainer.dev(HostAgent(host), val_dataset=asked)
        return asyncio.run(_collected(store, asked))


async def _collected(store: RunStore, asked: list[dict[str, Any]]) -> list[DryRun]:
    """Return what a store has of each request, in their order."""
    rollouts = list(await store.query_rollouts())
    # The store returns rollouts in the order in which they ended.
    rollouts.sort(key=lambda rollout: asked.index(rollout.input))
    runs = []
    for rollout in rollouts:
        spans = list(await store.query_spans(rollout.rollout_id, attempt_id="latest"))
        runs.append(DryRun(from_spans(spans), [span.model_dump() for span in spans]))
    return runs


class _Work(agl.Algorithm):
    """The work of a run, as agentlightning's `Trainer` runs it."""

    def __init__(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        super().__init__()
        self._work = work

    async def run(self, train_dataset: object = None, val_dataset: object = None) -> None:
        """Called by agentlightning."""
        await self._work()

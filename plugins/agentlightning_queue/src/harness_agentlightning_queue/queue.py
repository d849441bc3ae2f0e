"""The run's side of the queue, on agentlightning's store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import agentlightning as agl
from agentlightning.types import EnqueueRolloutRequest, NamedResources, RolloutConfig

from harness.contracts.queue import HeldRollout, LostAttempt, Queue, QueuedRequest, RunQueue
from harness.records import Attempt
from harness.util.endpoints import Endpoint
from harness_agentlightning_queue.agent_queue import AGENT
from harness_agentlightning_queue.spans import from_spans, to_spans
from harness_agentlightning_queue.store import RunStore, StoreClient, StoreServer

POLICY_RESOURCE = "policy"
START_TRIES = 3
"""Number of ports that a queue tries to listen on."""


def resources_of(policy: Endpoint) -> NamedResources:
    """Return the resources of each rollout: the policy."""
    llm = agl.LLM(endpoint=policy.base_url, model=policy.model, api_key=policy.api_key)
    return {POLICY_RESOURCE: llm}


class LightningQueue(Queue):
    """The queue in a store.

    Args:
        store: The store itself, its server in this process, or a client of a server.
    """

    def __init__(self, store: RunStore | StoreServer | StoreClient) -> None:
        self.store = store

    async def enqueue(self, requests: Sequence[QueuedRequest]) -> Sequence[str]:
        items = []
        for one in requests:
            config = RolloutConfig(
                timeout_seconds=one.limit_s,
                max_attempts=one.attempts,
                retry_condition=["failed", "timeout", "unresponsive"],
            )
            item = EnqueueRolloutRequest(
                input=dict(one.request),
                mode=one.phase,
                config=config,
                metadata={**one.metadata, AGENT: one.agent},
            )
            items.append(item)
        rollouts = await self.store.enqueue_many_rollouts(items)
        return [rollout.rollout_id for rollout in rollouts]

    async def ended(self, rollout_ids: Sequence[str]) -> Sequence[str]:
        done = await self.store.wait_for_rollouts(rollout_ids=list(rollout_ids), timeout=0)
        return [rollout.rollout_id for rollout in done]

    async def last_attempt(self, rollout_id: str) -> Attempt | LostAttempt | None:
        spans = await self.store.query_spans(rollout_id, attempt_id="latest")
        attempt = from_spans(list(spans))
        if attempt is not None:
            return attempt
        latest = await self.store.get_latest_attempt(rollout_id)
        if latest is None:
            return None
        lost = (latest.metadata or {}).get("lost")
        reason = f"runner {lost}" if lost else f"the store ended it: {latest.status}"
        return LostAttempt(latest.attempt_id, reason)

    async def forget(self, rollout_ids: Sequence[str]) -> None:
        await self.store.forget(rollout_ids)

    async def held(self, runner: str) -> Sequence[HeldRollout]:
        found = []
        for rollout in await self.store.query_rollouts(status_in=["preparing", "running"]):
            attempt = await self.store.get_latest_attempt(rollout.rollout_id)
            if attempt is not None and attempt.worker_id == runner:
                held = HeldRollout(
                    rollout.rollout_id, attempt.attempt_id, rollout.input, attempt.start_time
                )
                found.append(held)
        return found

    async def hand_back(self, runner: str, reason: str) -> None:
        for held in await self.held(runner):
            await self.store.update_attempt(
                held.rollout_id, held.attempt_id, status="unresponsive", metadata={"lost": reason}
            )

    async def settle(self, attempt: Attempt) -> None:
        await self.store.add_many_spans(to_spans(attempt))
        await self.store.update_attempt(attempt.rollout_id, attempt.attempt_id, status="succeeded")

    async def heard(self) -> Mapping[str, float]:
        times = {}
        for worker in await self.store.query_workers():
            last = max(worker.last_heartbeat_time or 0.0, worker.last_dequeue_time or 0.0)
            times[worker.worker_id] = last
        return times

    async def close(self) -> None:
        if isinstance(self.store, StoreClient):
            await self.store.close()


class LocalQueue(LightningQueue, RunQueue):
    """The queue of one run in its own process, which other processes reach over HTTP.

    Args:
        host: Address to listen on, and by which other processes connect.
    """

    key = ""
    """It needs none: it belongs to one run."""

    def __init__(self, host: str) -> None:
        self._kept = RunStore(thread_safe=True)
        self._host = host
        super().__init__(self._kept)

    @property
    def endpoint(self) -> str:
        assert isinstance(self.store, StoreServer), "the queue has not started"
        return str(self.store.endpoint)

    async def start(self) -> None:
        for tries_left in reversed(range(START_TRIES)):
            self.store = StoreServer(self._kept, self._host)
            try:
                await self.store.start()
                return
            except RuntimeError:
                # agentlightning chooses a free port and binds it a moment later. If another process
                # takes it meanwhile, the next server has another one.
                if not tries_left:
                    raise

    async def welcome(self, invitation: Mapping[str, object], policy: Endpoint) -> None:
        await self.store.add_resources(resources_of(policy))

    def expect(self, runners: Sequence[str], free: int, agent: str = "") -> None:
        self._kept.shares_of(agent).expect(runners, free)

    async def stop(self) -> None:
        if isinstance(self.store, StoreServer):
            await self.store.stop()

"""agentlightning's store over HTTP, with few requests per rollout.

A request takes about 2 ms of the store's single process, and agentlightning's client makes one for
each span and one for the resources before each rollout: half of the cost of a small policy's
rollout there. Here the spans of an attempt travel together, and resources, which never change
during a run, are requested once.

agentlightning keeps every rollout until the process ends. Here the client that waited for one
releases it.

agentlightning gives a client as many rollouts as it has room for. Here a runner gets its share of
the rollouts of its agent (`harness.rollout.load_balancing`, `agent_queue`).

agentlightning takes deadlines from the machine's clock, so that a clock change could end all
running attempts. Here its store has a clock that is immune to clock changes.

A store in a process of its own (`harness-distributed`) may be away for a while: its clients wait
for it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import aiohttp
from agentlightning.store import collection_based
from agentlightning.store import utils as health
from agentlightning.store.base import UNSET, LightningStore, Unset, is_finished
from agentlightning.store.client_server import (
    API_V1_AGL_PREFIX,
    LightningStoreClient,
    LightningStoreServer,
)
from agentlightning.store.memory import InMemoryLightningStore
from agentlightning.types import (
    Attempt,
    AttemptedRollout,
    AttemptStatus,
    ResourcesUpdate,
    Rollout,
    Span,
)
from agentlightning.utils.server_launcher import PythonServerLauncherArgs
from fastapi import Body

from harness.errors import RunFailed
from harness.rollout.load_balancing import LoadBalancer
from harness.util import clock
from harness_agentlightning_queue.agent_queue import AGENT, TAKING, AgentQueue
from harness_agentlightning_queue.otlp_export import exported, flush

SPANS = "/harness/spans"
FORGET = "/harness/forget"
TAKE = "/harness/take"
AWAY_S = 120.0
"""Seconds without an answer of a separate store after which a run ends."""
POLL_S = 0.5

logger = logging.getLogger(__name__)

vars(collection_based)["time"] = vars(health)["time"] = SimpleNamespace(
    time=clock.now, perf_counter=time.perf_counter
)


class RunStore(InMemoryLightningStore):
    """agentlightning's store in memory, which can forget rollouts and share work among runners.

    Attributes:
        shares: By agent, the distribution of its rollouts among runners.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.shares: dict[str, LoadBalancer] = {}
        self._taking = asyncio.Lock()
        self._agents: dict[str, str] = {}
        self.collections._rollout_queue = AgentQueue(self._agents)

    async def _enqueue_many_rollouts(self, rollouts: Sequence[Rollout]) -> None:
        # agentlightning enqueues ids before it stores the rollouts.
        for rollout in rollouts:
            self._agents[rollout.rollout_id] = (rollout.metadata or {}).get(AGENT, "")
        await super()._enqueue_many_rollouts(rollouts)

    def shares_of(self, agent: str) -> LoadBalancer:
        """Return the distribution of an agent's rollouts, for threads of the run and of the server."""
        return self.shares.setdefault(agent, LoadBalancer())

    def taking_part(self) -> int:
        """Return the number of runners of all agents."""
        return sum(shares.taking_part() for shares in list(self.shares.values()))

    async def take(
        self, worker_id: str, running: int, free: int, agent: str = ""
    ) -> Sequence[AttemptedRollout]:
        """Return a runner's share of the waiting rollouts.

        Args:
            running: Rollouts that the runner has in progress.
            free: Further rollouts that it has room for.
            agent: The runner's agent; it gets only rollouts of this agent.
        """
        async with self._taking:
            TAKING.set(agent)
            waiting = await self.collections.rollout_queue.size()
            limit = self.shares_of(agent).share(worker_id, running, free, waiting)
            taken: Sequence[AttemptedRollout] = await self.dequeue_many_rollouts(
                limit=limit, worker_id=worker_id
            )
        return taken

    async def wait_for_rollouts(
        self, *, rollout_ids: list[str], timeout: float | None = None
    ) -> list[Rollout]:
        """Wait as agentlightning does, and return unknown rollouts as `cancelled`.

        With a timeout of 0 it looks once at all rollouts, where agentlightning would start a task
        for each, with five times the cost.
        """
        await super().wait_for_rollouts(
            rollout_ids=[] if timeout == 0 else rollout_ids, timeout=timeout
        )
        stored = {}
        async with self.collections.atomic(mode="r", snapshot=False, labels=["rollouts"]) as view:
            for rollout_id in rollout_ids:
                stored[rollout_id] = await view.rollouts.get({"rollout_id": {"exact": rollout_id}})
        finished = []
        for rollout_id, rollout in stored.items():
            # No runner will finish a rollout that the store does not know.
            rollout = rollout or Rollout(
                rollout_id=rollout_id, input=None, start_time=0.0, status="cancelled"
            )
            if is_finished(rollout):
                finished.append(rollout)
        return finished

    async def forget(self, rollout_ids: Sequence[str]) -> None:
        """Drop what is known of some rollouts that have ended."""
        async with self.collections.atomic(
            mode="rw", snapshot=False, labels=["rollouts", "attempts", "spans", "span_sequence_ids"]
        ) as kept:
            for rollout_id in rollout_ids:
                rollout = await kept.rollouts.get({"rollout_id": {"exact": rollout_id}})
                if rollout is None or not is_finished(rollout):
                    continue
                await kept.attempts.delete(
                    await self._unlocked_query_attempts_for_rollout(kept, rollout_id)
                )
                kept.attempts._items.pop(rollout_id, None)  # the empty mapping that is left
                await kept.rollouts.delete([rollout])
                await kept.span_sequence_ids.pop(rollout_id)
                await self._evict_spans_for_rollout(kept, rollout_id)
                for known in (
                    self._start_time_by_rollout,
                    self._completion_events,
                    self._span_bytes_by_rollout,
                ):
                    known.pop(rollout_id, None)
                self._agents.pop(rollout_id, None)
                self._evicted_rollout_span_sets.discard(rollout_id)


class StoreServer(LightningStoreServer):
    """agentlightning's server with a route for many spans: in a thread, on a free port, silent.

    Args:
        host: Where it listens, and by which others reach it.
    """

    def __init__(self, store: LightningStore, host: str = "127.0.0.1") -> None:
        launcher = PythonServerLauncherArgs(
            host=host, access_host=host, launch_mode="thread", log_level=logging.CRITICAL
        )
        super().__init__(store, launcher_args=launcher)
        assert self.app is not None

        async def add_many_spans(spans: list[Span]) -> int:
            return len(await self.add_many_spans(spans))

        async def forget(rollout_ids: list[str]) -> int:
            await self.forget(rollout_ids)
            return len(rollout_ids)

        async def take(
            worker_id: str = Body(),
            running: int = Body(),
            free: int = Body(),
            agent: str = Body(),
        ) -> Sequence[AttemptedRollout]:
            assert isinstance(store, RunStore)
            return await store.take(worker_id, running, free, agent)

        self.app.post(API_V1_AGL_PREFIX + TAKE, response_model=list[AttemptedRollout])(take)
        self.app.post(API_V1_AGL_PREFIX + SPANS, status_code=201)(add_many_spans)
        self.app.post(API_V1_AGL_PREFIX + FORGET, status_code=200)(forget)

    async def forget(self, rollout_ids: Sequence[str]) -> None:
        """Drop what is known of some rollouts that have ended."""
        store = self.store
        assert isinstance(store, RunStore)
        await store.forget(rollout_ids)


def quiet() -> None:
    """Silence agentlightning's tracebacks of exceptions, which the caller reports in one line."""
    for name in ("agentlightning", "uvicorn", "LiteLLM"):
        logging.getLogger(name).setLevel(logging.CRITICAL)


def gone(url: str) -> RunFailed:
    """Return the error of a store that has not answered for too long."""
    return RunFailed(
        f"the store at {url} has not answered for {AWAY_S:g} s: "
        "start it again, then --resume a training"
    )


class StoreClient(LightningStoreClient):
    """agentlightning's client, for a `StoreServer`.

    Args:
        url: URL of the store.
        key: Key of a separate store; the client waits for such a store if it does not answer.
    """

    def __init__(self, url: str, key: str = "") -> None:
        # Most of a thousand requests wait for one of aiohttp's hundred connections, longer than
        # agentlightning's limit of 5 s.
        super().__init__(url, request_timeout=60.0, connection_timeout=60.0)
        self.key = key
        self.stopping = False
        """Whether attempts that fail from now on do so because their runner is stopping."""
        self._away = False
        self._resources: dict[str, ResourcesUpdate] = {}

    async def _get_session(self) -> aiohttp.ClientSession:
        session: aiohttp.ClientSession = await super()._get_session()
        if self.key:
            session.headers["Authorization"] = f"Bearer {self.key}"
        return session

    async def _request_json(self, *args: object, **kwargs: object) -> object:
        ends = time.monotonic() + AWAY_S
        while True:
            try:
                return await super()._request_json(*args, **kwargs)
            except (aiohttp.ClientError, TimeoutError) as error:  # or a partial answer
                if not self.key or getattr(error, "status", 503) != 503:
                    raise
                if time.monotonic() > ends:
                    raise gone(self.server_address_root) from error
            await asyncio.sleep(POLL_S)

    async def add_many_spans(self, spans: Sequence[Span]) -> Sequence[Span]:
        """Store all spans or none, in one request, and return them."""
        await self._request_json(
            "post", SPANS, json=[span.model_dump(mode="json") for span in spans]
        )
        exported(spans)
        return spans

    async def update_attempt(
        self,
        rollout_id: str,
        attempt_id: str,
        status: AttemptStatus | Unset = UNSET,
        **more: object,
    ) -> Attempt:
        """Update an attempt as agentlightning does.

        Attempts that fail because their runner stops go to other runners and use no retry.
        """
        if self.stopping and status == "failed":
            status, more["metadata"] = "unresponsive", {"lost": "was stopped"}
        return await super().update_attempt(rollout_id, attempt_id, status, **more)

    async def close(self) -> None:
        """Export waiting spans, then close the connections."""
        await asyncio.to_thread(flush)
        await super().close()

    async def take(
        self, worker_id: str, running: int, free: int, agent: str = ""
    ) -> Sequence[AttemptedRollout]:
        """Do `RunStore.take`; return nothing if the server does not answer.

        The request is never repeated, because rollouts in a lost answer are already taken.
        """
        session = await self._get_session()
        asked = {"worker_id": worker_id, "running": running, "free": free, "agent": agent}
        try:
            async with session.post(f"{self.server_address}{TAKE}", json=asked) as answer:
                answer.raise_for_status()
                self._away = False
                return [AttemptedRollout.model_validate(row) for row in await answer.json()]
        except (aiohttp.ClientError, TimeoutError) as error:
            if not self._away:
                logger.warning("the store gives no rollouts: %s", error)
            self._away = True
            return []

    async def get_resources_by_id(self, resources_id: str) -> ResourcesUpdate | None:
        """Return resources, requested from the server only once."""
        if resources_id not in self._resources:
            found = await super().get_resources_by_id(resources_id)
            if found is None:
                return None
            self._resources[resources_id] = found
        return self._resources[resources_id]

    async def forget(self, rollout_ids: Sequence[str]) -> None:
        """Drop what is known of some rollouts that have ended."""
        await self._request_json("post", FORGET, json=list(rollout_ids))

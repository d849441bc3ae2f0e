"""agentlightning's store over HTTP, with few requests a rollout.

A request takes about 2 ms of the one process that holds the store, and agentlightning's client makes one for each span
and one for the resources before each rollout: half of what a rollout of a small policy costs there. Here the spans of
an attempt travel together, and resources, which never change during a run, are asked for once.

agentlightning keeps every rollout until the process ends. Here whoever waited for one says when it is done with it.

agentlightning gives whoever asks all it has room for. Here a runner is given its share (`shares.py`).

agentlightning takes deadlines from the machine's clock: one that is set forward would end all attempts under way. Here
its store has a clock that nobody sets.
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
from agentlightning.store.base import LightningStore, is_finished
from agentlightning.store.client_server import API_V1_AGL_PREFIX, LightningStoreClient, LightningStoreServer
from agentlightning.store.memory import InMemoryLightningStore
from agentlightning.types import AttemptedRollout, ResourcesUpdate, Span
from agentlightning.utils.server_launcher import PythonServerLauncherArgs
from fastapi import Body

from harness import clock
from harness.rollout.shares import Shares

SPANS = "/harness/spans"
FORGET = "/harness/forget"
TAKE = "/harness/take"

logger = logging.getLogger(__name__)

vars(collection_based)["time"] = vars(health)["time"] = SimpleNamespace(time=clock.now, perf_counter=time.perf_counter)


class RunStore(InMemoryLightningStore):
    """agentlightning's store in memory, which can forget, and shares work among runners.

    Attributes:
        shares: Who takes rollouts.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.shares = Shares()
        self._taking = asyncio.Lock()

    async def take(self, worker_id: str, running: int, free: int) -> Sequence[AttemptedRollout]:
        """A runner's share of the rollouts that wait.

        Args:
            running: How many it has under way.
            free: How many more it has room for.
        """
        async with self._taking:
            waiting = await self.collections.rollout_queue.size()
            limit = self.shares.share(worker_id, running, free, waiting)
            taken: Sequence[AttemptedRollout] = await self.dequeue_many_rollouts(limit=limit, worker_id=worker_id)
        return taken

    async def forget(self, rollout_ids: Sequence[str]) -> None:
        """Drop what is known of some rollouts that have ended."""
        async with self.collections.atomic(
            mode="rw", snapshot=False, labels=["rollouts", "attempts", "spans", "span_sequence_ids"]
        ) as kept:
            for rollout_id in rollout_ids:
                rollout = await kept.rollouts.get({"rollout_id": {"exact": rollout_id}})
                if rollout is None or not is_finished(rollout):
                    continue
                await kept.attempts.delete(await self._unlocked_query_attempts_for_rollout(kept, rollout_id))
                kept.attempts._items.pop(rollout_id, None)  # the empty mapping that is left
                await kept.rollouts.delete([rollout])
                await kept.span_sequence_ids.pop(rollout_id)
                await self._evict_spans_for_rollout(kept, rollout_id)
                for known in (self._start_time_by_rollout, self._completion_events, self._span_bytes_by_rollout):
                    known.pop(rollout_id, None)
                self._evicted_rollout_span_sets.discard(rollout_id)


class StoreServer(LightningStoreServer):
    """agentlightning's server with a route for many spans at once: in a thread, on a free port, silent.

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
            worker_id: str = Body(), running: int = Body(), free: int = Body()
        ) -> Sequence[AttemptedRollout]:
            assert isinstance(store, RunStore)
            return await store.take(worker_id, running, free)

        self.app.post(API_V1_AGL_PREFIX + TAKE, response_model=list[AttemptedRollout])(take)
        self.app.post(API_V1_AGL_PREFIX + SPANS, status_code=201)(add_many_spans)
        self.app.post(API_V1_AGL_PREFIX + FORGET, status_code=200)(forget)

    async def forget(self, rollout_ids: Sequence[str]) -> None:
        """Drop what is known of some rollouts that have ended."""
        store = self.store
        assert isinstance(store, RunStore)
        await store.forget(rollout_ids)


class StoreClient(LightningStoreClient):
    """agentlightning's client, for a `StoreServer`."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._resources: dict[str, ResourcesUpdate] = {}

    async def add_many_spans(self, spans: Sequence[Span]) -> Sequence[Span]:
        """Store all spans or none, in one request. Returns what it was given."""
        await self._request_json("post", SPANS, json=[span.model_dump(mode="json") for span in spans])
        return spans

    async def take(self, worker_id: str, running: int, free: int) -> Sequence[AttemptedRollout]:
        """As `RunStore.take`; nothing where the server does not answer. Asked once: an answer that is lost is lost."""
        session = await self._get_session()
        asked = {"worker_id": worker_id, "running": running, "free": free}
        try:
            async with session.post(f"{self.server_address}{TAKE}", json=asked) as answer:
                answer.raise_for_status()
                return [AttemptedRollout.model_validate(one) for one in await answer.json()]
        except (aiohttp.ClientError, TimeoutError) as error:
            logger.warning("the store gave no rollouts: %s", error)
            return []

    async def get_resources_by_id(self, resources_id: str) -> ResourcesUpdate | None:
        """Resources, from the server the first time."""
        if resources_id not in self._resources:
            found = await super().get_resources_by_id(resources_id)
            if found is None:
                return None
            self._resources[resources_id] = found
        return self._resources[resources_id]

    async def forget(self, rollout_ids: Sequence[str]) -> None:
        """Drop what is known of some rollouts that have ended."""
        await self._request_json("post", FORGET, json=list(rollout_ids))

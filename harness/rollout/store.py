"""agentlightning's store over HTTP, with few requests a rollout.

A request takes about 2 ms of the one process that holds the store, and agentlightning's client makes one for each span
and one for the resources before each rollout: half of what a rollout of a small policy costs there. Here the spans of
an attempt travel together, and resources, which never change during a run, are asked for once.

agentlightning keeps every rollout until the process ends. Here whoever waited for one says when it is done with it.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from agentlightning.store.base import LightningStore, is_finished
from agentlightning.store.client_server import API_V1_AGL_PREFIX, LightningStoreClient, LightningStoreServer
from agentlightning.store.memory import InMemoryLightningStore
from agentlightning.types import ResourcesUpdate, Span
from agentlightning.utils.server_launcher import PythonServerLauncherArgs

SPANS = "/harness/spans"
FORGET = "/harness/forget"


class RunStore(InMemoryLightningStore):
    """agentlightning's store in memory, which can forget."""

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

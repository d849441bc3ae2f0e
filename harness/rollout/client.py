"""Puts rollouts into agentlightning's store and collects what became of them."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

from harness.errors import RunFailed
from harness.records import Attempt
from harness.rollout.request import RolloutRequest
from harness.rollout.spans import from_spans
from harness.rollout.tools import READY_S
from harness.util import clock

if TYPE_CHECKING:
    from harness.rollout.store import RunStore, StoreClient, StoreServer

logger = logging.getLogger(__name__)

POLL_S = 0.1
"""The longest that the store's HTTP client may wait in one call; it has no subscription."""
LOST_TRIES = 16
"""Further attempts for those that are lost with their worker, whatever brought that down."""
BACKSTOP_S = 60.0
"""The store gives an attempt up this long after the deadline that its worker should have kept."""


class RolloutClient:
    """One side of the queue.

    One instance a process; `run` may be called any number of times at once.

    A single poller waits for all rollouts together, and what is enqueued in one turn of the event
    loop goes out in one request.
    """

    def __init__(self, store: RunStore | StoreClient | StoreServer) -> None:
        self._store = store
        self._outbox: list[tuple[Any, asyncio.Future[str]]] = []
        self._waiting: dict[str, asyncio.Future[None]] = {}
        self._flusher: asyncio.Task[None] | None = None
        self._poller: asyncio.Task[None] | None = None
        self._over: list[str] = []
        self._forgetter: asyncio.Task[None] | None = None

    async def run(self, request: RolloutRequest, metadata: dict[str, Any] | None = None) -> Attempt:
        """Run one rollout to its end and return its last attempt.

        Failures are outcomes, not exceptions.
        """
        started = clock.now()
        for _ in range(LOST_TRIES):
            rollout_id = await self._enqueue(request, metadata or {})
            finished: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting[rollout_id] = finished
            if self._poller is None or self._poller.done():
                self._poller = asyncio.create_task(self._poll())
            await finished
            try:
                if (attempt := await self._read(rollout_id, started)) is not None:
                    return attempt
            finally:
                self._forget(rollout_id)
            logger.warning(
                "the store does not know rollout %s any more: it is enqueued again", rollout_id
            )
        raise RunFailed(
            f"the store lost a rollout {LOST_TRIES} times: see why it is restarted so often"
        )

    async def _read(self, rollout_id: str, started: float) -> Attempt | None:
        """Return the last attempt of a finished rollout, or None if a restarted store lost it."""
        spans = await self._store.query_spans(rollout_id, attempt_id="latest")
        attempt = from_spans(list(spans))
        if attempt is not None:
            # A mix-up here would train on another question's calls, and show nowhere else.
            owners = {attempt.rollout_id, *(call.rollout_id for call in attempt.transitions)}
            if owners != {rollout_id}:
                raise AssertionError(
                    f"spans of rollout {attempt.rollout_id} came back for {rollout_id}"
                )
            return attempt
        if (latest := await self._store.get_latest_attempt(rollout_id)) is None:
            return None
        lost = (latest.metadata or {}).get("lost")
        detail = f"runner {lost}" if lost else f"the store ended it: {latest.status}"
        return Attempt(
            rollout_id=rollout_id,
            attempt_id=latest.attempt_id,
            outcome="runner_lost",
            detail=detail,
            answer=None,
            transitions=(),
            failures=(),
            tool_calls=(),
            started_s=started,
            elapsed_s=clock.now() - started,
        )

    def _forget(self, rollout_id: str) -> None:
        """Let the store drop a rollout that was read, together with the others of this moment."""
        self._over.append(rollout_id)
        if self._forgetter is None or self._forgetter.done():
            self._forgetter = asyncio.create_task(self._forget_many())

    async def _forget_many(self) -> None:
        while self._over:
            await asyncio.sleep(POLL_S)
            batch, self._over = self._over, []
            try:
                await self._store.forget(batch)
            except Exception as error:  # it costs memory, no rollout
                logger.warning("the store did not forget %d rollouts: %s", len(batch), error)

    async def _enqueue(self, request: RolloutRequest, metadata: dict[str, Any]) -> str:
        from agentlightning.types import EnqueueRolloutRequest, RolloutConfig

        item = EnqueueRolloutRequest(
            input=request.dump(),
            mode=request.phase,
            config=RolloutConfig(
                timeout_seconds=READY_S + request.timeout_s + BACKSTOP_S,
                max_attempts=request.retries + 1 + LOST_TRIES,
                retry_condition=["failed", "timeout", "unresponsive"],
            ),
            metadata=metadata,
        )
        accepted: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._outbox.append((item, accepted))
        if self._flusher is None or self._flusher.done():
            self._flusher = asyncio.create_task(self._flush())
        return await accepted

    async def _flush(self) -> None:
        await asyncio.sleep(0)  # let the other callers of this turn in
        while self._outbox:
            batch, self._outbox = self._outbox, []
            try:
                rollouts = await self._store.enqueue_many_rollouts([item for item, _ in batch])
            except Exception as error:
                for _, accepted in batch:
                    if not accepted.done():
                        accepted.set_exception(error)
                continue
            for (_, accepted), rollout in zip(batch, rollouts, strict=True):
                if not accepted.done():  # its caller may have been cancelled meanwhile
                    accepted.set_result(rollout.rollout_id)

    async def _poll(self) -> None:
        while self._waiting:
            try:
                done = await self._store.wait_for_rollouts(
                    rollout_ids=list(self._waiting), timeout=0
                )
            except Exception as error:
                for waiter in self._waiting.values():
                    if not waiter.done():
                        waiter.set_exception(error)
                self._waiting.clear()
                return
            for rollout in done:
                waiter = self._waiting.pop(rollout.rollout_id)
                if not waiter.done():
                    waiter.set_result(None)
            if not done:
                await asyncio.sleep(POLL_S)

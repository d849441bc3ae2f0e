"""Enqueues rollouts and collects their attempts."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from harness.contracts.queue import LostAttempt, Queue, QueuedRequest
from harness.errors import RunFailed
from harness.records import Attempt
from harness.rollout.request import RolloutRequest
from harness.rollout.tools import READY_S
from harness.util import clock

logger = logging.getLogger(__name__)

POLL_S = 0.1
"""Seconds between two polls of the queue, which offers no subscription."""
LOST_TRIES = 16
"""Further attempts at a rollout after attempts that were lost with their worker."""
BACKSTOP_S = 60.0
"""Seconds after a worker's deadline at which the queue gives up the attempt."""


class RolloutClient:
    """The run's side of the queue; one instance per process, with any number of concurrent `run`.

    A single poller waits for all rollouts, and all rollouts enqueued in one turn of the event loop
    are sent in one request.
    """

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._outbox: list[tuple[QueuedRequest, asyncio.Future[str]]] = []
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
            logger.warning("the queue has lost rollout %s: enqueueing it again", rollout_id)
        raise RunFailed(
            f"the queue lost a rollout {LOST_TRIES} times: see the store's log for why it restarts"
        )

    async def _read(self, rollout_id: str, started: float) -> Attempt | None:
        """Return the last attempt of a finished rollout, or None if a restarted queue lost it."""
        attempt = await self._queue.last_attempt(rollout_id)
        if attempt is None:
            return None
        if isinstance(attempt, Attempt):
            # A mix-up would train on another question's calls, and no later check would detect it.
            owners = {attempt.rollout_id, *(call.rollout_id for call in attempt.transitions)}
            if owners != {rollout_id}:
                raise AssertionError(
                    f"spans of rollout {attempt.rollout_id} came back for {rollout_id}"
                )
            return attempt
        return _lost(rollout_id, attempt, started)

    def _forget(self, rollout_id: str) -> None:
        """Let the queue drop a rollout that was read; requests are batched."""
        self._over.append(rollout_id)
        if self._forgetter is None or self._forgetter.done():
            self._forgetter = asyncio.create_task(self._forget_many())

    async def _forget_many(self) -> None:
        while self._over:
            await asyncio.sleep(POLL_S)
            batch, self._over = self._over, []
            try:
                await self._queue.forget(batch)
            except Exception as error:  # costs only memory
                logger.warning("the queue did not forget %d rollouts: %s", len(batch), error)

    async def _enqueue(self, request: RolloutRequest, metadata: dict[str, Any]) -> str:
        item = QueuedRequest(
            request.dump(),
            request.phase,
            limit_s=READY_S + request.timeout_s + BACKSTOP_S,
            attempts=request.retries + 1 + LOST_TRIES,
            metadata=metadata,
            agent=request.agent,
        )
        accepted: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._outbox.append((item, accepted))
        if self._flusher is None or self._flusher.done():
            self._flusher = asyncio.create_task(self._flush())
        return await accepted

    async def _flush(self) -> None:
        await asyncio.sleep(0)  # wait for the other callers of this turn
        while self._outbox:
            batch, self._outbox = self._outbox, []
            try:
                ids = await self._queue.enqueue([item for item, _ in batch])
            except Exception as error:
                for _, accepted in batch:
                    if not accepted.done():
                        accepted.set_exception(error)
                continue
            for (_, accepted), rollout_id in zip(batch, ids, strict=True):
                if not accepted.done():  # its caller may have been cancelled meanwhile
                    accepted.set_result(rollout_id)

    async def _poll(self) -> None:
        while self._waiting:
            try:
                done = await self._queue.ended(list(self._waiting))
            except Exception as error:
                for waiter in self._waiting.values():
                    if not waiter.done():
                        waiter.set_exception(error)
                self._waiting.clear()
                return
            for rollout_id in done:
                waiter = self._waiting.pop(rollout_id)
                if not waiter.done():
                    waiter.set_result(None)
            if not done:
                await asyncio.sleep(POLL_S)


def _lost(rollout_id: str, lost: LostAttempt, started: float) -> Attempt:
    """Return the record of an attempt that was lost with its runner."""
    return Attempt(
        rollout_id=rollout_id,
        attempt_id=lost.attempt_id,
        outcome="runner_lost",
        detail=lost.reason,
        answer=None,
        transitions=(),
        failures=(),
        tool_calls=(),
        started_s=started,
        elapsed_s=clock.now() - started,
    )

"""Choose an upstream for each call by its role, and limit running and waiting calls."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any

from harness.gateway.failures import Refusal

DOWN_S = 5.0
"""Seconds for which an upstream that refused a connection is avoided, while others are up."""


class Upstream:
    """One model server."""

    def __init__(self, base_url: str, api_key: str | None) -> None:
        self.base_url = base_url.rstrip("/")
        self.url = self.base_url + "/chat/completions"
        self.in_flight = 0
        self.calls = 0
        self.down_until = 0.0
        self.headers = {"content-type": "application/json"}
        if api_key:
            self.headers["authorization"] = f"Bearer {api_key}"

    def mark_down(self) -> None:
        """Avoid it for a while, because an upstream that fails fast would attract all calls."""
        self.down_until = time.monotonic() + DOWN_S


class UpstreamPool:
    """The servers of one model. A rollout starts at the least loaded one and stays there.

    The calls of a rollout share a prefix, which that server has cached.

    Args:
        concurrency: Calls that one upstream may have in progress.
        queue_size: Calls that may wait.
    """

    def __init__(self, concurrency: int, queue_size: int) -> None:
        self.model = ""
        self.token_ids = False
        self.under_way = 0
        self._concurrency = concurrency
        self._queue_size = queue_size
        self._upstreams: list[Upstream] = []
        self._homes: dict[str, Upstream] = {}
        self._waiting: deque[tuple[str, asyncio.Future[Upstream]]] = deque()

    def replace(
        self, upstreams: Iterable[tuple[str, str | None]], model: str, token_ids: bool
    ) -> None:
        """Set the upstreams for waiting and new calls. Calls in progress keep their upstream."""
        earlier = {upstream.base_url: upstream for upstream in self._upstreams}
        fresh = []
        for base_url, api_key in upstreams:
            upstream = Upstream(base_url, api_key)
            # The same object, so that its calls in progress still count as load.
            if (old := earlier.get(upstream.base_url)) is not None:
                old.headers, old.down_until = upstream.headers, 0.0
                upstream = old
            fresh.append(upstream)
        self._upstreams = fresh
        self.model, self.token_ids = model, token_ids
        self._homes = {rollout: home for rollout, home in self._homes.items() if home in fresh}
        self._dispatch()

    async def acquire(self, rollout_id: str) -> Upstream:
        """Take a slot, waiting if necessary. Return it with `release`.

        Raises:
            Refusal: `no_upstream` or `queue_full`.
        """
        if not self._upstreams:
            raise Refusal("no_upstream", "no model server is set yet")
        if not self._waiting and (upstream := self._choose(rollout_id)) is not None:
            return self._take(upstream)
        if self.queued >= self._queue_size:
            raise Refusal("queue_full", f"{self._queue_size} calls are waiting already")
        slot: asyncio.Future[Upstream] = asyncio.get_running_loop().create_future()
        entry = (rollout_id, slot)
        self._waiting.append(entry)
        try:
            return await slot
        except asyncio.CancelledError:
            if slot.done() and not slot.cancelled():
                self.release(slot.result())
            with suppress(ValueError):
                self._waiting.remove(entry)
            raise

    def release(self, upstream: Upstream) -> None:
        """Return a slot."""
        upstream.in_flight -= 1
        self.under_way -= 1
        self._dispatch()

    def forget(self, rollout_id: str) -> None:
        """Forget the upstream of a rollout that has ended."""
        self._homes.pop(rollout_id, None)

    @property
    def queued(self) -> int:
        """Calls that wait for a slot."""
        return len(self._waiting)

    def stats(self) -> list[dict[str, Any]]:
        """Return one row per upstream."""
        now = time.monotonic()
        rows: list[dict[str, Any]] = []
        for upstream in self._upstreams:
            row = {
                "base_url": upstream.base_url,
                "in_flight": upstream.in_flight,
                "calls": upstream.calls,
                "down": upstream.down_until > now,
            }
            rows.append(row)
        return rows

    def _choose(self, rollout_id: str) -> Upstream | None:
        now = time.monotonic()
        up = [upstream for upstream in self._upstreams if upstream.down_until <= now]
        # If all are down, a call still tries one: it may be up again.
        up = up or self._upstreams
        # A rollout stays with its server, which has the prefix of its prompts in its cache.
        home = self._homes.get(rollout_id)
        if home is not None and home in up and home.in_flight < self._concurrency:
            return home
        best = min(up, key=lambda upstream: upstream.in_flight, default=None)
        if best is None or best.in_flight >= self._concurrency:
            return None
        if home is None or home not in up:
            self._homes[rollout_id] = best
        return best

    def _take(self, upstream: Upstream) -> Upstream:
        upstream.in_flight += 1
        self.under_way += 1
        upstream.calls += 1
        return upstream

    def _dispatch(self) -> None:
        while self._waiting:
            rollout_id, slot = self._waiting[0]
            if slot.done():
                self._waiting.popleft()
                continue
            upstream = self._choose(rollout_id)
            if upstream is None:
                return
            self._waiting.popleft()
            slot.set_result(self._take(upstream))


class Pools:
    """The upstreams of the run's policy, and those of roles that another model answers.

    Args:
        concurrency: Calls that one upstream may have in progress.
        queue_size: Calls that may wait for one model.
        most: Most running and waiting calls over all upstreams and models.
    """

    def __init__(self, concurrency: int, queue_size: int, most: int) -> None:
        self._bounds = concurrency, queue_size
        self._most = most
        self.policy = UpstreamPool(*self._bounds)
        self._roles: dict[str, UpstreamPool] = {}

    def of(self, role: str) -> UpstreamPool:
        """Return the upstreams for the calls of a role."""
        return self._roles.get(role, self.policy)

    def own(self, role: str) -> UpstreamPool:
        """Return upstreams of a role's own, so that the policy no longer answers its calls."""
        return self._roles.setdefault(role, UpstreamPool(*self._bounds))

    async def acquire(self, role: str, rollout_id: str) -> tuple[UpstreamPool, Upstream]:
        """Take a slot for a call of a role, waiting if necessary. Return it to the pool.

        Raises:
            Refusal: `no_upstream` or `queue_full`.
        """
        # Roles share the descriptors of one process, so their calls count together.
        if sum(pool.under_way + pool.queued for pool in self._all()) >= self._most:
            raise Refusal(
                "queue_full",
                f"{self._most} calls are in progress, and this process has file descriptors for no "
                "more",
            )
        pool = self.of(role)
        return pool, await pool.acquire(rollout_id)

    def forget(self, rollout_id: str) -> None:
        """Forget the upstreams of a rollout that has ended."""
        for pool in self._all():
            pool.forget(rollout_id)

    @property
    def queued(self) -> int:
        """Calls that wait for a slot."""
        return sum(pool.queued for pool in self._all())

    def stats(self) -> list[dict[str, Any]]:
        """Return one row per upstream; those of a role have its name."""
        rows = self.policy.stats()
        for role, pool in self._roles.items():
            rows += [{"role": role, **row} for row in pool.stats()]
        return rows

    def _all(self) -> Iterator[UpstreamPool]:
        yield self.policy
        yield from self._roles.values()

"""Spans and resources over the store's HTTP server: all there, in few requests."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import agentlightning as agl
import pytest
from agentlightning.types import AttemptedRollout, EnqueueRolloutRequest, RolloutConfig

from harness.records import Attempt, Problem, Transition
from harness.rollout.client import RolloutClient
from harness.rollout.request import RolloutRequest
from harness_agentlightning_queue.queue import LightningQueue
from harness_agentlightning_queue.spans import from_spans, to_spans
from harness_agentlightning_queue.store import RunStore, StoreClient, StoreServer


class Counting(StoreClient):
    """Notes every request."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.requests: list[str] = []

    async def _request_json(self, method: Any, path: str, **kwargs: Any) -> Any:
        self.requests.append(path)
        return await super()._request_json(method, path, **kwargs)


def request_of(number: int) -> RolloutRequest:
    return RolloutRequest(
        problem=Problem(f"t/{number}", "?"),
        program="self_correcting_sql",
        environment="sql",
        payload={},
        phase="val",
        max_turns=1,
        sampling={},
        tool_timeout_s=1.0,
        timeout_s=30.0,
        retries=0,
    )


def attempt_of(rollout_id: str, attempt_id: str, calls: int) -> Attempt:
    transitions = tuple(
        Transition(
            rollout_id=rollout_id,
            attempt_id=attempt_id,
            index=index,
            role="write_query",
            response_id=f"{rollout_id}-{index}",
            model="policy",
            messages=({"role": "user", "content": "Wie viele Sänger? 🎤"},),
            response_text="SELECT 1",
            finish_reason="stop",
            prompt_ids=tuple(range(400)),
            response_ids=(7, 8, 9),
            logprobs=(-0.1, -1e-7, -12.25),
            prompt_tokens=400,
            response_tokens=3,
            sampling={"temperature": 1.0},
            overridden={},
            started_s=float(index),
            latency_s=0.5,
            gateway_s=0.001,
        )
        for index in range(calls)
    )
    return Attempt(rollout_id, attempt_id, "ok", "", "SELECT 1", transitions, (), (), 1.0, 2.0)


def test_an_attempt_comes_back_as_it_was_in_one_request() -> None:
    async def main() -> None:
        server = StoreServer(RunStore(thread_safe=True))
        await server.start()
        client = Counting(server.endpoint)
        try:
            policy = agl.LLM(endpoint="http://127.0.0.1:1/v1", model="policy", api_key="k")
            await server.add_resources({"policy": policy})
            for number in range(3):
                rollout = await client.start_rollout(input={"question": number}, mode="train")
                attempt = attempt_of(rollout.rollout_id, rollout.attempt.attempt_id, calls=4)
                client.requests.clear()
                assert rollout.resources_id is not None
                resources = await client.get_resources_by_id(rollout.resources_id)
                assert resources is not None and resources.resources["policy"] == policy
                await client.add_many_spans(to_spans(attempt))
                assert len(client.requests) == (2 if number == 0 else 1), client.requests
                spans = await client.query_spans(rollout.rollout_id, attempt_id="latest")
                assert from_spans(list(spans)) == attempt
            assert await client.get_resources_by_id("no-such-resources") is None
        finally:
            await client.close()
            await server.stop()

    asyncio.run(main())


def test_a_rollout_that_was_read_is_forgotten_and_one_under_way_is_not() -> None:
    async def main() -> None:
        store = RunStore(thread_safe=True)
        server = StoreServer(store)
        await server.start()
        client = StoreClient(server.endpoint)
        waits = RolloutClient(LightningQueue(client))
        try:
            await server.add_resources(
                {"policy": agl.LLM(endpoint="http://127.0.0.1:1/v1", model="p", api_key="k")}
            )
            asked = [asyncio.create_task(waits.run(request_of(number))) for number in range(4)]
            taken: list[AttemptedRollout] = []
            while len(taken) < 4:
                taken += await client.dequeue_many_rollouts(limit=4, worker_id="w")
                await asyncio.sleep(0.01)
            for rollout in taken[:3]:
                attempt = attempt_of(rollout.rollout_id, rollout.attempt.attempt_id, calls=2)
                await client.add_many_spans(to_spans(attempt))
                await client.update_attempt(
                    rollout.rollout_id, rollout.attempt.attempt_id, status="succeeded"
                )
            while (
                len([task for task in asked if task.done()]) < 3
                or len(await store.query_rollouts()) > 1
            ):
                await asyncio.sleep(0.05)
            (left,) = await store.query_rollouts()
            assert left.rollout_id == taken[3].rollout_id
            counts: Any = await store.statistics()
            assert (
                counts["total_rollouts"] == counts["total_attempts"] == 1
                and counts["total_span_bytes"] == 0
            ), counts
            attempts: Any = store.collections.attempts
            assert {
                len(kept)
                for kept in (
                    store._completion_events,
                    store._start_time_by_rollout,
                    attempts._items,
                )
            } == {1}
            await client.forget([left.rollout_id, "never-seen"])  # it has not ended
            assert len(await store.query_rollouts()) == 1
            asked[[not task.done() for task in asked].index(True)].cancel()
        finally:
            await client.close()
            await server.stop()

    asyncio.run(asyncio.wait_for(main(), 60))


def test_requests_that_are_sent_again_or_in_another_order_change_no_attempt() -> None:
    """A client that lost an answer sends its request once more; a proxy may turn two around."""

    async def main() -> None:
        store = RunStore(thread_safe=True)
        server = StoreServer(store)
        await server.start()
        client = StoreClient(server.endpoint)
        try:
            await server.add_resources(
                {"policy": agl.LLM(endpoint="http://127.0.0.1:1/v1", model="p", api_key="k")}
            )
            first = await client.start_rollout(input={"question": 1}, mode="train")
            second = await client.start_rollout(input={"question": 2}, mode="train")
            attempts = {
                one.rollout_id: attempt_of(one.rollout_id, one.attempt.attempt_id, calls=3)
                for one in (first, second)
            }

            async def send_spans(rollout_id: str) -> None:
                await client.add_many_spans(to_spans(attempts[rollout_id]))

            async def end(one: AttemptedRollout, status: Any) -> None:
                await client.update_attempt(one.rollout_id, one.attempt.attempt_id, status=status)

            await end(second, "succeeded")  # before its spans
            for _ in range(2):
                await send_spans(first.rollout_id)
                await send_spans(second.rollout_id)
                await end(first, "succeeded")
            await send_spans(first.rollout_id)  # once more, after its end
            for rollout_id, attempt in attempts.items():
                spans = await client.query_spans(rollout_id, attempt_id="latest")
                assert from_spans(list(spans)) == attempt
                rollout = await client.get_rollout_by_id(rollout_id)
                assert rollout is not None and rollout.status == "succeeded"
            assert not await client.dequeue_many_rollouts(limit=4, worker_id="w")
        finally:
            await client.close()
            await server.stop()

    asyncio.run(asyncio.wait_for(main(), 60))


def test_a_clock_that_is_set_forward_ends_no_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        store = RunStore(thread_safe=True, scan_debounce_seconds=0)
        limit_s = 0.5
        config = RolloutConfig(timeout_seconds=limit_s, max_attempts=2, retry_condition=["timeout"])
        await store.enqueue_many_rollouts(
            [EnqueueRolloutRequest(input={}, mode="train", config=config)]
        )
        (taken,) = await store.take("w", 0, 4)
        began, was = time.monotonic(), time.time
        monkeypatch.setattr(time, "time", lambda: was() + 3600)
        again = await store.take("w", 1, 3)
        assert not again or time.monotonic() - began > limit_s
        while not again:  # its own time does end it
            await asyncio.sleep(0.05)
            again = await store.take("w", 1, 3)
        assert again[0].rollout_id == taken.rollout_id and time.monotonic() - began > limit_s - 0.1
        assert again[0].attempt.start_time - taken.attempt.start_time < 600

    asyncio.run(asyncio.wait_for(main(), 60))

"""Spans and resources over the store's HTTP server: all there, in few requests."""

from __future__ import annotations

import asyncio
from typing import Any

import agentlightning as agl
from agentlightning.store.memory import InMemoryLightningStore

from harness.records import Attempt, Transition
from harness.rollout.spans import from_spans, to_spans
from harness.rollout.store import StoreClient, StoreServer


class Counting(StoreClient):
    """Notes every request."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.requests: list[str] = []

    async def _request_json(self, method: Any, path: str, **kwargs: Any) -> Any:
        self.requests.append(path)
        return await super()._request_json(method, path, **kwargs)


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
        server = StoreServer(InMemoryLightningStore(thread_safe=True))
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

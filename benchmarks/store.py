"""Measure the store process's cost of handing over rollouts: harness's store and agentlightning's.

    python benchmarks/store.py [--rollouts 256] [--calls 3] [--rounds 3]

Each store's server runs in a process of its own. A client in this process enqueues rollouts, takes
them, requests the resources, hands in the spans of attempts with `--calls` calls of 400 prompt and
40 response tokens and reads them back, 32 rollouts at a time: a training's requests to the store,
without agents and model. CPU time is the server's.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import multiprocessing
import time
from typing import Any

import psutil

CONCURRENT = 32


def serve(own: bool, pipe: Any) -> None:
    """Run a store's server until the pipe closes."""
    from agentlightning.store.client_server import LightningStoreServer
    from agentlightning.utils.server_launcher import PythonServerLauncherArgs

    from harness_agentlightning_queue.store import RunStore, StoreServer

    async def main() -> None:
        store = RunStore(thread_safe=True)
        plain = PythonServerLauncherArgs(
            host="127.0.0.1", launch_mode="thread", log_level=logging.CRITICAL
        )
        server = StoreServer(store) if own else LightningStoreServer(store, launcher_args=plain)
        await server.start()
        pipe.send(server.endpoint)
        await asyncio.to_thread(pipe.recv)
        await server.stop()

    asyncio.run(main())


async def work(endpoint: str, own: bool, rollouts: int, calls: int) -> None:
    """Make all requests of a training to the store for so many rollouts."""
    import agentlightning as agl
    from agentlightning.store.client_server import LightningStoreClient
    from agentlightning.types import EnqueueRolloutRequest

    from harness.records import Attempt, Transition
    from harness_agentlightning_queue.spans import from_spans, to_spans
    from harness_agentlightning_queue.store import StoreClient

    store = (StoreClient if own else LightningStoreClient)(endpoint)
    await store.add_resources(
        {"policy": agl.LLM(endpoint="http://127.0.0.1:1", model="m", api_key="k")}
    )
    messages = ({"role": "user", "content": "CREATE TABLE singer (id INTEGER, name TEXT);\n" * 40},)

    def attempt_of(rollout_id: str, attempt_id: str) -> Attempt:
        transitions = tuple(
            Transition(
                rollout_id=rollout_id,
                attempt_id=attempt_id,
                index=index,
                role="write_query",
                response_id=f"{rollout_id}-{index}",
                model="m",
                messages=messages,
                response_text="SELECT 1 " * 10,
                finish_reason="stop",
                prompt_ids=tuple(range(400)),
                response_ids=tuple(range(40)),
                logprobs=(-0.25,) * 40,
                prompt_tokens=400,
                response_tokens=40,
                sampling={"temperature": 1.0},
                overridden={},
                started_s=0.0,
                latency_s=0.5,
                gateway_s=0.001,
            )
            for index in range(calls)
        )
        return Attempt(rollout_id, attempt_id, "ok", "", "SELECT 1", transitions, (), (), 0.0, 1.0)

    async def one(limit: asyncio.Semaphore, rollout: Any) -> None:
        async with limit:
            assert await store.get_resources_by_id(rollout.resources_id) is not None
            attempt = attempt_of(rollout.rollout_id, rollout.attempt.attempt_id)
            await store.add_many_spans(to_spans(attempt))
            await store.update_attempt(
                rollout.rollout_id, rollout.attempt.attempt_id, status="succeeded"
            )
            assert (
                from_spans(list(await store.query_spans(rollout.rollout_id, attempt_id="latest")))
                == attempt
            )

    await store.enqueue_many_rollouts(
        [EnqueueRolloutRequest(input={"n": n}, mode="train") for n in range(rollouts)]
    )
    taken = list(await store.dequeue_many_rollouts(limit=rollouts, worker_id="bench"))
    limit = asyncio.Semaphore(CONCURRENT)
    await asyncio.gather(*(one(limit, rollout) for rollout in taken))
    await store.close()


def measure(own: bool, rollouts: int, calls: int, rounds: int) -> tuple[float, float]:
    """Return the best round's CPU milliseconds of the server and wall milliseconds, a rollout."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=serve, args=(own, there), daemon=True)
    process.start()
    endpoint = here.recv()
    server = psutil.Process(process.pid)
    best: tuple[float, float] | None = None
    asyncio.run(work(endpoint, own, 16, calls))  # imports and first connections
    for _ in range(rounds):
        used, began = sum(server.cpu_times()[:2]), time.perf_counter()
        asyncio.run(work(endpoint, own, rollouts, calls))
        wall, cpu = time.perf_counter() - began, sum(server.cpu_times()[:2]) - used
        found = 1000 * cpu / rollouts, 1000 * wall / rollouts
        best = min(best or found, found)
    here.send(None)
    process.join(20)
    assert best is not None
    return best


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rollouts", type=int, default=256)
    parser.add_argument("--calls", type=int, default=3, help="model calls of each rollout")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    rows = {
        name: measure(own, options.rollouts, options.calls, options.rounds)
        for name, own in (("agentlightning", False), ("harness", True))
    }
    print(f"{options.rollouts} rollouts of {options.calls} calls, best of {options.rounds} rounds")
    print("store            server's CPU ms/rollout   wall ms/rollout")
    for name, (cpu, wall) in rows.items():
        print(f"{name:<16} {cpu:>24.1f} {wall:>17.1f}")
    (cpu, wall), (our_cpu, our_wall) = rows["agentlightning"], rows["harness"]
    print(f"{'ratio':<16} {cpu / our_cpu:>23.2f}x {wall / our_wall:>16.2f}x")


if __name__ == "__main__":
    main()

"""Measure how evenly runners share a step's rollouts: the busiest one's as a multiple of the mean.

    python benchmarks/sharing.py [--rollouts 256] [--runners 4] [--concurrency 16 64 256] \\
        [--steps 3]

Agent: `reference_sql` in processes of its own, three calls a rollout, answered by a scripted
server. "All that is free" gives each runner as many rollouts as it has room for, as
agentlightning's queue does; "a share" is harness's way.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest.mock import patch

import psutil
from memory import scripted_model


def measure(
    url: str, shared: bool, rollouts: int, runners: int, concurrency: int, steps: int
) -> tuple[float, ...]:
    """Return the worst step's ratios of rollouts and processor time, and overall rollouts/s."""
    from harness.config import load_config
    from harness.plugins import make_task_set
    from harness.rollout.load_balancing import LoadBalancer
    from harness.rollout.session import Session
    from harness.rollout.stack import RolloutWork
    from harness.runs.folder import RunFolder
    from harness_agentlightning_queue.store import RunStore

    overrides = [f"rollout.runners={runners}", f"rollout.concurrency={concurrency}"]
    config = load_config("cpu", agent="reference_sql", overrides=overrides)
    tasks = make_task_set(config).load("val")
    taken = Counter[str]()
    found: list[tuple[float, float]] = []
    spent_s: list[float] = []

    class Work(RolloutWork):
        async def work(self, store: Any) -> None:
            assert self.pools is not None
            workers = self.pools.workers()
            async with self.gateway.control() as control:
                await control.set_upstreams([url], model="scripted", token_ids=True)
                session = Session(
                    config, "scripted", store, control, RunFolder(self.log_dir.parent), config.eval
                )
                while not all(worker.heartbeat.exists() for worker in workers):
                    await asyncio.sleep(0.1)
                processes = [psutil.Process(worker.process.pid) for worker in workers]
                for step in range(steps + 1):
                    taken.clear()
                    before, began = [used(process) for process in processes], time.perf_counter()
                    asked = ((tasks[number % len(tasks)].id, number) for number in range(rollouts))
                    await asyncio.gather(
                        *(session.rollout(task, "val", step, number) for task, number in asked)
                    )
                    if step:  # the first one imports and connects
                        spent_s.append(time.perf_counter() - began)
                        cpu = [
                            used(process) - then
                            for process, then in zip(processes, before, strict=True)
                        ]
                        counts = [taken[worker.id] for worker in workers]
                        found.append((uneven(counts), uneven(cpu)))

    take = RunStore.dequeue_many_rollouts

    async def counted(self: RunStore, *, limit: int = 1, worker_id: str | None = None) -> Any:
        given = await take(self, limit=limit, worker_id=worker_id)
        taken[str(worker_id)] += len(given)
        return given

    with ExitStack() as changed:
        changed.enter_context(patch.object(RunStore, "dequeue_many_rollouts", counted))
        if not shared:
            changed.enter_context(
                patch.object(
                    LoadBalancer, "share", lambda self, runner, running, free, waiting: free
                )
            )
        path = Path(changed.enter_context(tempfile.TemporaryDirectory())) / "run"
        (path / "logs").mkdir(parents=True)
        Work(config, "scripted", path / "logs", f"sharing-{os.getpid()}").execute()
    return *(max(column) for column in zip(*found, strict=True)), rollouts * steps / sum(spent_s)


def used(process: psutil.Process) -> float:
    return sum(process.cpu_times()[:2])


def uneven(values: Sequence[float]) -> float:
    return max(values) * len(values) / sum(values)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rollouts", type=int, default=256)
    parser.add_argument("--runners", type=int, default=4)
    parser.add_argument("--concurrency", type=int, nargs="+", default=[16, 64, 256])
    parser.add_argument("--steps", type=int, default=3)
    options = parser.parse_args()

    url = scripted_model()
    print(
        f"{options.rollouts} rollouts a step, {options.runners} runners; "
        f"worst of {options.steps} steps, max / mean"
    )
    print("rollout.concurrency  given              rollouts  processor time  rollouts/s")
    for concurrency in options.concurrency:
        for shared in (False, True):
            counts, cpu, rate = measure(
                url, shared, options.rollouts, options.runners, concurrency, options.steps
            )
            given = "a share" if shared else "all that is free"
            print(
                f"{concurrency:>19}  {given:<17} {counts:>9.2f} {cpu:>15.2f} {rate:>11.0f}",
                flush=True,
            )


if __name__ == "__main__":
    main()

"""Measure memory and open files of the process with a run's services over thousands of rollouts.

    python benchmarks/memory.py [--rollouts 20000] [--runners 2] [--concurrency 32]

Agent: `reference_sql` in processes of its own, three calls a rollout, answered by a scripted
server. Prints megabytes and descriptors of this process and of the gateway at each tenth, and the
ratio of the last to those at 2,000 rollouts.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
import tempfile
import time
from itertools import count
from multiprocessing import Process, SimpleQueue
from pathlib import Path
from typing import Any

import psutil

SETTLED = 2000
"""Rollouts after which everything is in use that ever will be."""


def answer(queue: SimpleQueue[str]) -> None:
    """Run a scripted model in its own process."""
    from harness.mock_model.server import ScriptedServer

    replies = ("```sql\nSELECT 1\n```", "No. It must be 2.", "```sql\nSELECT 2\n```")

    def script(request: Any) -> str:
        system = str(request.messages[0]["content"])
        return (
            replies[1]
            if "You check" in system
            else replies[2 if "rewrite" in system.lower() else 0]
        )

    with ScriptedServer(script) as server:
        queue.put(server.base_url)
        time.sleep(10**6)


def scripted_model() -> str:
    """Return the URL of a scripted model that ends with this process."""
    queue: SimpleQueue[str] = SimpleQueue()
    Process(target=answer, args=(queue,), daemon=True).start()
    return queue.get()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rollouts", type=int, default=20_000)
    parser.add_argument("--runners", type=int, default=2)
    parser.add_argument("--concurrency", type=int, default=32)
    options = parser.parse_args()

    from harness.config import load_config
    from harness.plugins import make_task_set
    from harness.rollout.session import Session
    from harness.rollout.stack import RolloutWork
    from harness.runs.folder import RunFolder

    url = scripted_model()
    rollout = {"runners": options.runners, "concurrency": options.concurrency}
    config = load_config(
        "cpu", agent="reference_sql", overrides=[f"rollout.{k}={v}" for k, v in rollout.items()]
    )
    tasks = make_task_set(config).load("val")

    class Work(RolloutWork):
        async def work(self, store: Any) -> None:
            async with self.gateway.control() as control:
                await control.set_upstreams([url], model="scripted", token_ids=True)
                folder = RunFolder(self.log_dir.parent)
                session = Session(config, "scripted", store, control, folder, config.eval)
                gate = asyncio.Semaphore(options.runners * options.concurrency)
                began, done = time.perf_counter(), count(1)
                seen: list[tuple[int, float, float]] = []
                this, gateway = psutil.Process(), psutil.Process(self.gateway.pid)

                async def one(number: int) -> None:
                    async with gate:
                        await session.rollout(tasks[number % len(tasks)].id, "val", 0, number)
                    ended = next(done)
                    if ended % max(1, options.rollouts // 10) == 0 or ended == SETTLED:
                        gc.collect()
                        ours, its = (
                            process.memory_info().rss / 2**20 for process in (this, gateway)
                        )
                        seen.append((ended, ours, its))
                        rate = ended / (time.perf_counter() - began)
                        here = f"{ours:.0f} MB and {this.num_fds()} files here"
                        there = f"{its:.0f} MB and {gateway.num_fds()} files in the gateway"
                        print(
                            f"{ended:6} rollouts: {here}, {there}, {rate:.0f} rollouts/s",
                            flush=True,
                        )

                numbers = iter(range(options.rollouts))

                async def lane() -> None:
                    for number in numbers:
                        await one(number)

                await asyncio.gather(
                    *(lane() for _ in range(options.runners * options.concurrency))
                )
                first, last = (
                    next(row for row in seen if row[0] >= min(SETTLED, options.rollouts // 10)),
                    seen[-1],
                )
                ratios = f"{last[1] / first[1]:.2f}x here, {last[2] / first[2]:.2f}x in the gateway"
                print(f"from {first[0]} to {last[0]} rollouts: {ratios}")

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run"
        (path / "logs").mkdir(parents=True)
        Work(config, "scripted", path / "logs", f"memory-{os.getpid()}").execute()


if __name__ == "__main__":
    main()

"""Measure the speed of the CPU policy server's decoder, this checkout's and another's in turn.

    python benchmarks/decoder.py --baseline OTHER_CHECKOUT [--rounds 3] [--threads 2] \\
        [--policy pocket-sql]

Each workload runs in a process of its own with the checkout first on its path, so both use this
environment. Prints tokens a second of the medians and their ratio. Only the ratio is comparable
between machines, if they are quiet.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

WORKLOADS = {
    "a step of pocket": {"requests": 145, "prompts": 52, "shortest": 70, "longest": 190, "new": 22},
    "longer prompts": {"requests": 128, "prompts": 32, "shortest": 180, "longest": 420, "new": 40},
    "ragged": {"requests": 64, "prompts": 64, "shortest": 10, "longest": 900, "new": 64},
    "long answers": {"requests": 32, "prompts": 8, "shortest": 200, "longest": 300, "new": 256},
    "few at once": {"requests": 4, "prompts": 4, "shortest": 200, "longest": 400, "new": 96},
    "validation": {"requests": 240, "prompts": 240, "shortest": 70, "longest": 190, "new": 22},
}
"""Numbers of requests and prompts; tokens of prompts; tokens of the longest answers.

Other answers have at least half as many tokens.
"""


def measure(workload: dict[str, int], policy: str) -> float:
    """Return tokens a second, in this process."""
    import random
    import threading
    import time

    import torch
    from transformers import AutoModelForCausalLM

    from harness.policies import resolve
    from harness_policy_server.decoder import Decoder, Generation

    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    model = AutoModelForCausalLM.from_pretrained(resolve(policy), dtype=torch.float32).eval()
    decoder = Decoder(model, 64, 2048, set())
    drawn = random.Random(0)
    prompts = [
        [
            drawn.randrange(20, 1000)
            for _ in range(drawn.randint(workload["shortest"], workload["longest"]))
        ]
        for _ in range(workload["prompts"])
    ]
    finished = threading.Semaphore(0)

    def ask(number: int, new: int) -> None:
        prompt = prompts[number % len(prompts)]
        decoder.submit(Generation(prompt, new, seed=number, done=lambda _: finished.release()))

    ask(0, 2)  # what is done once
    finished.acquire()
    began, before = time.perf_counter(), decoder.tokens
    for number in range(workload["requests"]):
        ask(number, workload["new"] // 2 + number * (workload["new"] // 2) // workload["requests"])
    for _ in range(workload["requests"]):
        finished.acquire()
    rate = (decoder.tokens - before) / (time.perf_counter() - began)
    decoder.stop()
    return rate


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--baseline", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--policy", default="pocket-sql")
    parser.add_argument("--workload", choices=WORKLOADS, action="append")
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        sys.stdout.write(f"{measure(json.loads(options.measure), options.policy)}\n")
        return
    checkouts = {"this": Path(__file__).parents[1], "baseline": options.baseline}
    for name in options.workload or WORKLOADS:
        found: dict[str, list[float]] = {}
        for _ in range(options.rounds):
            for which, checkout in checkouts.items():
                if checkout is None:
                    continue
                with tempfile.TemporaryDirectory() as folder:
                    asked = [sys.executable, __file__, "--measure", json.dumps(WORKLOADS[name])]
                    done = subprocess.run(
                        [*asked, "--policy", options.policy],
                        env=os.environ
                        | {"PYTHONPATH": str(checkout), "OMP_NUM_THREADS": str(options.threads)},
                        cwd=folder,
                        capture_output=True,
                        text=True,
                        check=False,
                    )
                if done.returncode:
                    raise SystemExit(done.stderr[-2000:])
                found.setdefault(which, []).append(float(done.stdout))
        medians = {which: statistics.median(rates) for which, rates in found.items()}
        ratio = f", {medians['this'] / medians['baseline']:.2f}x" if options.baseline else ""
        speeds = [f"{which} {rate:,.0f} tokens/s" for which, rate in medians.items()]
        print(
            f"{name}: {', '.join(speeds)}{ratio}",
            flush=True,
        )


if __name__ == "__main__":
    main()

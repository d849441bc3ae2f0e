"""How long one waits for a training: to its first rollout, and to the end of `train --ci-fast`.

    python benchmarks/start.py [--baseline OTHER/.venv/bin/harness] [--rounds 2] [--plugin reference_sql]

Runs this environment's `harness` and, with `--baseline`, another checkout's in turn on the same machine, and prints
seconds and the ratio of their medians. Seconds mean nothing elsewhere; the ratio does, on a quiet machine.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

POLL_S = 0.05


def measure(command: str, plugin: str) -> tuple[float, float]:
    """Seconds to the first row of a rollout, and to the end."""
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        process = subprocess.Popen(
            [command, "train", "--ci-fast", "--plugin", plugin, "--set", "device=cpu", "--runs-dir", folder],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=environment,
            cwd=folder,  # a checkout that one stands in would be imported
        )
        first = 0.0
        while process.poll() is None:
            if not first and any(path.stat().st_size for path in Path(folder).glob("*/logs/episodes-*.jsonl")):
                first = time.perf_counter() - began
            time.sleep(POLL_S)
        ended = time.perf_counter() - began
        if process.returncode:
            assert process.stdout is not None
            raise SystemExit(f"{command} ended with status {process.returncode}: {process.stdout.read()[-2000:]}")
        return first, ended


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--baseline", help="another checkout's `harness`")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--plugin", default="reference_sql")
    arguments = parser.parse_args()
    this = shutil.which("harness")
    if this is None:
        parser.error("there is no `harness` on PATH: activate the environment")
    commands = {"this": this} | ({"baseline": arguments.baseline} if arguments.baseline else {})
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in commands}
    for _ in range(arguments.rounds):
        for name, command in commands.items():
            taken[name].append(measure(command, arguments.plugin))
            print(f"{name:10} first rollout {taken[name][-1][0]:6.1f} s   end {taken[name][-1][1]:6.1f} s", flush=True)
    middle = {name: [statistics.median(each) for each in zip(*pairs, strict=True)] for name, pairs in taken.items()}
    if arguments.baseline:
        first, ended = (own / other for own, other in zip(middle["this"], middle["baseline"], strict=True))
        print(f"this against baseline: first rollout {first:.2f}x, end {ended:.2f}x ({os.cpu_count()} cores)")


if __name__ == "__main__":
    main()

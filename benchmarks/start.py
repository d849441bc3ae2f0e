"""Measure the wait for a training: to its first rollout, and to the end of `train --ci-fast`.

    python benchmarks/start.py [--baseline OTHER/.venv/bin/harness] [--rounds 2] \\
        [--plugin reference_sql] [--study] [--device cuda]

With `--study` it measures the second training of a study, from its start by the study.

Runs this environment's `harness` and, with `--baseline`, another checkout's in turn on the same
machine, and prints seconds and the ratio of their medians. Only the ratio is comparable between
machines, if they are quiet.
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
ENVIRONMENT = {
    name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")
}
"""Environment of a measured checkout, without references to another one."""


def own(parser: argparse.ArgumentParser) -> str:
    """Return this environment's `harness`."""
    this = shutil.which("harness")
    if this is None:
        parser.error("there is no `harness` on PATH: activate the environment")
    return this


def measure(command: str, plugin: str, device: str) -> tuple[float, float]:
    """Return the seconds to the first row of a rollout, and to the end."""
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        process = subprocess.Popen(
            [
                command,
                "train",
                "--ci-fast",
                "--plugin",
                plugin,
                "--set",
                f"device={device}",
                "--runs-dir",
                folder,
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=ENVIRONMENT,
            cwd=folder,  # Python would import a checkout in the current folder
        )
        first = 0.0
        while process.poll() is None:
            if not first and any(
                path.stat().st_size for path in Path(folder).glob("*/logs/episodes-*.jsonl")
            ):
                first = time.perf_counter() - began
            time.sleep(POLL_S)
        ended = time.perf_counter() - began
        if process.returncode:
            assert process.stdout is not None
            raise SystemExit(
                f"{command} ended with status {process.returncode}: {process.stdout.read()[-2000:]}"
            )
        return first, ended


def measure_further(command: str, plugin: str, device: str) -> tuple[float, float]:
    """Measure as `measure`, for the second run of a study."""
    settings = (
        f"device: {device}, train.steps: 1, train.batch_size: 4, rollout.group_size: 2, "
        "task.val_limit: 8"
    )
    with tempfile.TemporaryDirectory() as folder:
        file, runs = Path(folder) / "start.yaml", Path(folder) / "start"
        study = [command, "study", str(file), "--runs-dir", folder, "--without-parity"]
        for axis in ("plugin", "agent"):  # an older checkout calls agents plugins
            file.write_text(
                f"preset: cpu\nset: {{{settings}}}\nmatrix: {{{axis}: [{plugin}], seed: [0, 1]}}\n"
            )
            tried = subprocess.run(
                [*study, "--dry-run"], capture_output=True, env=ENVIRONMENT, cwd=folder, check=False
            )
            if not tried.returncode:
                break
        nowhere = subprocess.DEVNULL
        process = subprocess.Popen(
            study, env=ENVIRONMENT, cwd=folder, stdout=nowhere, stderr=nowhere
        )
        first = 0.0
        while process.poll() is None:
            begun = sorted(path.stat().st_mtime for path in runs.glob("configs/*"))
            rows = [
                path
                for path in runs.glob("*/logs/episodes-*.jsonl")
                if path.stat().st_mtime > begun[-1]
            ]
            if len(begun) == 2 and not first and any(path.stat().st_size for path in rows):
                first = time.time() - begun[-1]
            time.sleep(POLL_S)
        if process.returncode:
            raise SystemExit(f"{command} study ended with status {process.returncode}")
        return first, time.time() - begun[-1]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--baseline", help="another checkout's `harness`")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--plugin", default="reference_sql")
    parser.add_argument("--study", action="store_true", help="the second training of a study")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    arguments = parser.parse_args()
    commands = {"this": own(parser)} | (
        {"baseline": arguments.baseline} if arguments.baseline else {}
    )
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in commands}
    for _ in range(arguments.rounds):
        for name, command in commands.items():
            seconds = (measure_further if arguments.study else measure)(
                command, arguments.plugin, arguments.device
            )
            taken[name].append(seconds)
            print(
                f"{name:10} first rollout {seconds[0]:6.1f} s   end {seconds[1]:6.1f} s", flush=True
            )
    middle = {
        name: [statistics.median(each) for each in zip(*pairs, strict=True)]
        for name, pairs in taken.items()
    }
    if arguments.baseline:
        first, ended = (
            own / other for own, other in zip(middle["this"], middle["baseline"], strict=True)
        )
        print(
            f"this against baseline: first rollout {first:.2f}x, end {ended:.2f}x "
            f"({os.cpu_count()} cores)"
        )


if __name__ == "__main__":
    main()

"""Measure the processor seconds of `harness compare` and `harness report`.

    python benchmarks/compare.py [--baseline OTHER/.venv/bin/harness] [--rounds 5] \\
        [--of results/studies/frameworks]

Runs this environment's `harness` and, with `--baseline`, an older checkout's in turn, both on the
folder `--of` of the older one (which cannot read newer records), and prints medians and their
ratio. A first round is not counted.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import tempfile
from pathlib import Path

from start import ENVIRONMENT, own


def seconds(command: str, what: str, folder: Path) -> float:
    """Return the processor seconds of one command, including system time."""
    with tempfile.TemporaryDirectory() as place:
        arguments = [command, what, str(folder)] + (
            ["--out", f"{place}/report.html"] if what == "report" else []
        )
        before = os.times()
        done = subprocess.run(
            arguments, capture_output=True, text=True, env=ENVIRONMENT, cwd=place, check=False
        )
        after = os.times()
    if done.returncode:
        raise SystemExit(
            f"{command} {what} {folder} ended with status {done.returncode}: {done.stderr[-2000:]}"
        )
    return (
        after.children_user - before.children_user + after.children_system - before.children_system
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--baseline", help="an older checkout's `harness`, run in turn with this one's"
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--of",
        default="results/studies/frameworks",
        help="a folder of runs, from a checkout's root",
    )
    options = parser.parse_args()
    commands = [own(parser), *filter(None, [options.baseline])]
    folder = Path(commands[-1]).absolute().parents[2] / options.of
    for what in ("compare", "report"):
        found: dict[str, list[float]] = {command: [] for command in commands}
        for number in range(options.rounds + 1):
            for command in commands:
                took = seconds(command, what, folder)
                if number:
                    found[command].append(took)
        medians = [statistics.median(found[command]) for command in commands]
        spread = "; ".join(" ".join(f"{one:.2f}" for one in found[command]) for command in commands)
        ratio = (
            f", {medians[0] / medians[1]:.2f}x of the baseline's {medians[1]:.2f} s"
            if options.baseline
            else ""
        )
        print(f"{what}: {medians[0]:.2f} s{ratio} ({spread})")


if __name__ == "__main__":
    main()

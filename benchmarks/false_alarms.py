"""Simulate how often `harness compare` calls arms different that are not.

    python benchmarks/false_alarms.py [--repeats 2000] [--seeds 3 8 16 32]

Differences of right and wrong answers are drawn with shifts by seed and by cluster, as between two
arms that train alike, and tested as a comparison tests them. For every set of clusters the output
has: false alarms of one arm at 5 %, the share of its 95 % intervals that hold the truth, and how
often one of four arms raises a false alarm (Holm). Takes some minutes.
"""

from __future__ import annotations

import argparse
import sys

import numpy as np
import polars as pl

from harness.compare.estimates import crossed_mean
from harness.compare.statistics import holm

SETS = {
    "6 equal": [40] * 6,
    "6 unequal": [100, 60, 40, 20, 12, 8],
    "one with 83 %": [150] + [3] * 10,
    "one with 64 %": [150, 40, 30, 10, 5],
    "2 equal": [60] * 2,
    "3 equal": [60] * 3,
    "40 unequal": [
        *[1] * 4,
        *[2] * 4,
        4,
        5,
        6,
        6,
        *[8] * 7,
        *[10] * 4,
        *[12] * 4,
        *[14] * 4,
        22,
        24,
        24,
        28,
        34,
        36,
    ],
}
SHIFTS = ((0.03, 0.04), (0.0, 0.04), (0.03, 0.0), (0.1, 0.04), (0.03, 0.1))
"""Standard deviations between seeds and between clusters."""
ARMS = 4


def drawn(
    generator: np.random.Generator,
    repeats: int,
    seeds: int,
    sizes: list[int],
    by_seed: float,
    by_cluster: float,
) -> tuple[np.ndarray, np.ndarray]:
    """Return p values for draws of no difference and whether intervals hold it, [repeats] each."""
    cluster = np.repeat(np.arange(len(sizes)), sizes)
    seed, task = np.indices((seeds, len(cluster))).reshape(2, -1)
    rows = pl.DataFrame({"seed": seed, "cluster": cluster[task], "task_id": task})
    p_values, held = np.ones(repeats), np.ones(repeats, bool)
    for index in range(repeats):
        shift = (
            generator.normal(0, by_seed, (seeds, 1))
            + generator.normal(0, by_cluster, len(sizes))[cluster]
        )
        up, down = (np.clip(0.2 + side * shift / 2, 0.001, 0.999) for side in (1, -1))
        draw = generator.random(shift.shape)
        found = crossed_mean(
            rows.with_columns(value=((draw < up) * 1.0 - (draw > 1 - down)).ravel())
        )
        assert found is not None
        p_values[index], held[index] = found.p_difference(), found.low <= 0 <= found.high
    return p_values, held


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=2000)
    parser.add_argument("--seeds", type=int, nargs="+", default=[3, 8, 16, 32])
    options = parser.parse_args()
    repeats = options.repeats - options.repeats % ARMS
    error = 100 * (0.05 * 0.95 / repeats) ** 0.5
    print(
        f"{repeats} draws; standard error of a true 5 %: {error:.1f} %, "
        f"of four arms {ARMS**0.5 * error:.1f} %"
    )
    heads = "  ".join(f"{100 * one:g}+{100 * other:g}".rjust(16) for one, other in SHIFTS)
    print(f"seeds  clusters        {heads}   (points between seeds + clusters)")
    for seeds in options.seeds:
        for name, sizes in SETS.items():
            generator, cells = np.random.default_rng([seeds, len(sizes)]), []
            for by_seed, by_cluster in SHIFTS:
                p_values, held = drawn(generator, repeats, seeds, sizes, by_seed, by_cluster)
                families = p_values.reshape(-1, ARMS)
                together = np.mean([min(holm(family.tolist())) < 0.05 for family in families])
                alone = f"{100 * np.mean(p_values < 0.05):4.1f}"
                cell = f"{alone} {100 * held.mean():5.1f} {100 * together:4.1f}"
                cells.append(cell.rjust(16))
            print(f"{seeds:5}  {name:14}  {'  '.join(cells)}", flush=True)
    sys.stdout.flush()


if __name__ == "__main__":
    main()

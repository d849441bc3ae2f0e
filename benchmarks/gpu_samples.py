"""Read samples of nvidia-smi: a GPU's load in rollout phases, and its memory between them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

FREED = 0.5
"""Memory below this share of a window's most counts as released."""
GROWING = 0.1
"""Share of its growth after which memory counts as growing; the rest follows within milliseconds."""
GROWN = 0.95
"""Share of its growth after which memory counts as allocated."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One line of `nvidia-smi --query-gpu=timestamp,index,utilization.gpu,memory.used`.

    Attributes:
        at: Seconds of the epoch, with the clock and time zone of this machine.
        busy: Utilization in percent.
        memory: Memory in use, in MiB.
    """

    at: float
    busy: float
    memory: float


def samples_of(path: Path) -> list[Sample]:
    """Return the samples of a file, of all its GPUs."""
    samples = []
    for line in path.read_text().splitlines():
        time, _, busy, memory = line.split(", ")
        at = datetime.strptime(time, "%Y/%m/%d %H:%M:%S.%f").timestamp()
        samples.append(Sample(at, float(busy), float(memory)))
    return samples


def in_rollouts(samples: Sequence[Sample], spans: Sequence[tuple[float, float]]) -> dict[str, Any]:
    """Return devices' idle share and load in rollout phases, and the most memory."""
    busy = []
    for sample in samples:
        if any(start <= sample.at <= end for start, end in spans):
            busy.append(sample.busy)
    return {
        "samples": len(busy),
        "idle_share": busy.count(0) / len(busy) if busy else None,
        "mean_utilization": sum(busy) / len(busy) if busy else None,
        "max_memory_gib": max(sample.memory for sample in samples) / 1024,
    }


def between_rollouts(
    samples: Sequence[Sample], spans: Sequence[tuple[float, float]], longest_s: float = 10.0
) -> dict[str, float]:
    """Return how the trainer uses a GPU between two rollout phases, medians in seconds.

    vLLM releases its memory after a rollout phase, the update allocates and releases its own, and
    vLLM takes its memory back. Phases after which memory does not fall twice are left out.

    Args:
        samples: Of one GPU, in order of time.
        spans: Start and end of the rollout phases, in order.
        longest_s: Phases further apart, for example by a checkpoint, are left out.

    Returns:
        `released_s`: from the last rollout until vLLM has released its memory; `waiting_s`: until
        the update allocates memory; `growing_s`: until it has allocated most of it; `computing_s`:
        until it has released it; `resuming_s`: until the next rollout begins; `busy_share`: mean
        utilization while computing, from 0 to 1; `phases`: the number of phases. Without any
        phase, only `phases`.
    """
    rows = []
    for (_, end), (start, _) in pairwise(spans):
        window = [sample for sample in samples if end <= sample.at <= start]
        if start - end <= longest_s and (row := _between(window, end, start)):
            rows.append(row)
    medians: dict[str, float] = {"phases": len(rows)}
    for name in rows[0] if rows else ():
        medians[name] = float(np.median([row[name] for row in rows]))
    return medians


def _between(window: Sequence[Sample], end: float, start: float) -> dict[str, float] | None:
    memory = np.array([sample.memory for sample in window])
    released = _fall(memory, 0)
    if released is None:
        return None
    least = memory[released:].min()
    growing = _rise(memory, released, least + GROWING * (memory.max() - least))
    freed = None if growing is None else _fall(memory, growing)
    if growing is None or freed is None:
        return None
    peak = memory[growing:freed].max()
    grown = _rise(memory, growing, least + GROWN * (peak - least))
    if grown is None:
        return None
    times = [end, *(window[index].at for index in (released, growing, grown, freed)), start]
    names = ("released_s", "waiting_s", "growing_s", "computing_s", "resuming_s")
    seconds = dict(zip(names, np.diff(times).tolist(), strict=True))
    busy = [sample.busy for sample in window[grown:freed]]
    return seconds | {"busy_share": float(np.mean(busy)) / 100}


def _fall(memory: np.ndarray, begin: int) -> int | None:
    """Return the first index from `begin` where memory is below a share of its most since then."""
    highest = np.maximum.accumulate(memory[begin:])
    fallen = np.flatnonzero(memory[begin:] < FREED * highest)
    return begin + int(fallen[0]) if len(fallen) else None


def _rise(memory: np.ndarray, begin: int, level: float) -> int | None:
    """Return the first index from `begin` where memory is at least at a level."""
    risen = np.flatnonzero(memory[begin:] >= level)
    return begin + int(risen[0]) if len(risen) else None

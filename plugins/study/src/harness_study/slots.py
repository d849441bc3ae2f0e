"""Places for runs on one machine, each with its own processor cores and accelerators."""

from __future__ import annotations

import math
import os
import shutil
import subprocess
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.errors import UserError

_TOPOLOGY = Path("/sys/devices/system/cpu")
_QUOTA = Path("/sys/fs/cgroup/cpu.max")


@dataclass(frozen=True)
class Slot:
    """Room for one run at a time.

    Attributes:
        index: From 0.
        cores: Logical processors that its run is bound to; disjoint between slots. Empty if runs
            are not local.
        gpus: CUDA_VISIBLE_DEVICES of its run; None leaves that unchanged.
    """

    index: int
    cores: frozenset[int]
    gpus: tuple[str, ...] | None = None


def make_slots(jobs: int, gpus_per_run: int = 1) -> list[Slot]:
    """Return equal slots over this process's processors and GPUs; one slot takes everything.

    GPUs are distributed in turn. If there are fewer than the slots need, runs share them.

    Raises:
        UserError: There are fewer cores than slots.
    """
    cores = sorted(os.sched_getaffinity(0), key=_place)
    if jobs == 1:
        return [Slot(0, frozenset(cores))]
    share = usable_cores() // jobs
    if share < 1:
        raise UserError(
            f"--jobs {jobs}: every run needs a core of its own "
            f"and {usable_cores()} can be used here. "
            f"Give 1 to {usable_cores()}"
        )
    # Cores are sorted by socket and physical core, so neighbours share caches. A container's quota
    # may allow fewer than it shows; then slots lie apart, each with its share of them.
    gpus = visible_gpus()
    width = len(cores) // jobs
    slots = []
    for index in range(jobs):
        own_cores = frozenset(cores[index * width : index * width + share])
        own_gpus = None
        if gpus:
            # Slots take the GPUs in turn, and begin again when there are too few.
            first = index * gpus_per_run
            count = min(gpus_per_run, len(gpus))
            own_gpus = tuple(gpus[place % len(gpus)] for place in range(first, first + count))
        slots.append(Slot(index, own_cores, own_gpus))
    return slots


def usable_cores() -> int:
    """Return the logical processors of this process, by affinity and by a container's quota."""
    count = len(os.sched_getaffinity(0))
    try:
        quota, period = _QUOTA.read_text(encoding="utf-8").split()
        return min(count, max(1, math.floor(int(quota) / int(period))))
    except (OSError, ValueError):  # no such file, or "max"
        return count


def visible_gpus() -> list[str]:
    """Return the GPUs in CUDA_VISIBLE_DEVICES, else those of nvidia-smi, without loading CUDA."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    if named is not None:
        return [gpu.strip() for gpu in named.split(",") if gpu.strip()]
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return []
    try:
        done = subprocess.run(
            [tool, "--list-gpus"], capture_output=True, text=True, timeout=30, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return []
    gpus = []
    # The list also has lines for parts of a GPU (MIG), which cannot be named by a number.
    for index, line in enumerate(done.stdout.splitlines()):
        if line.startswith("GPU"):
            gpus.append(str(index))
    return gpus


def nearest(cores: Collection[int], slots: Sequence[Slot]) -> Slot | None:
    """Return the slot that shares most cores with these, for a run of an earlier launch."""
    return max(slots, key=lambda slot: len(slot.cores.intersection(cores)), default=None)


def _place(core: int) -> tuple[int, int, int]:
    """Sort the threads of a physical core, and the cores of a socket, next to each other."""
    folder = _TOPOLOGY / f"cpu{core}" / "topology"
    try:
        return (
            int((folder / "physical_package_id").read_text()),
            int((folder / "core_id").read_text()),
            core,
        )
    except (OSError, ValueError):
        return 0, core, core

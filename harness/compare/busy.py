"""Warn of measurements on a busy machine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from harness.runs.reading import Run

BUSY = 1.5
"""Load average per processor above which processes wait for the machine."""


def busy(runs: Sequence[Run]) -> list[str]:
    """Return a remark on the runs that started on a busy machine, if there are any."""
    highest: list[float] = []
    for run in runs:
        load = max(launch.get("load", 0.0) for launch in run.record["launches"])
        if load > BUSY:
            highest.append(load)
    if not highest:
        return []
    return [
        f"The machine was busy at the start of {len(highest)} of {len(runs)} "
        f"run{'s' * (len(runs) > 1)}, with a load of up to {max(highest):.1f} per processor: "
        "times, those of frameworks above all, include waiting for other processes."
    ]

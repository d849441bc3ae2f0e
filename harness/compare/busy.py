"""Warn of measurements on a busy machine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from harness.runs.reading import Run

BUSY = 1.5
"""Load average per processor above which processes wait for the machine."""


def waited(run: Run) -> str:
    """Return why processes of a run may have waited for the processor; empty if nothing shows it."""
    load = _load(run)
    at_once = max(launch.get("runs_at_once", 0) for launch in run.record["launches"])
    reasons = []
    if load > BUSY:
        reasons.append(
            f"the machine was busy at the start, with a load of {load:.1f} per processor"
        )
    if at_once > 1:
        reasons.append(f"{at_once} runs shared the machine")
    return "; ".join(reasons)


def _load(run: Run) -> float:
    """Return the highest load at the start of a launch, per processor; 0 if unknown."""
    return max(launch.get("load", 0.0) for launch in run.record["launches"])


def busy(runs: Sequence[Run]) -> list[str]:
    """Return a remark on the runs that started on a busy machine, if there are any."""
    highest: list[float] = []
    for run in runs:
        if (load := _load(run)) > BUSY:
            highest.append(load)
    if not highest:
        return []
    return [
        f"The machine was busy at the start of {len(highest)} of {len(runs)} "
        f"run{'s' * (len(runs) > 1)}, with a load of up to {max(highest):.1f} per processor: "
        "times, those of frameworks above all, include waiting for other processes."
    ]

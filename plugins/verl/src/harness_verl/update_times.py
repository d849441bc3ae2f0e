"""Measure the parts of an update in the process that computes it.

verl times an update as a whole, from the call of its workers until their answer. The time that is
not in these parts is spent with the hand-over: Ray, the rows from TransferQueue, the results.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from time import perf_counter
from typing import Any

PARTS = ("divide", "passes", "optimizer")
"""The parts of an optimizer step, in order.

`divide`: rows divided among passes. `passes`: forward and backward passes. `optimizer`: gradients
clipped and weights changed; on a GPU also the rest of the last backward pass, because the host does
not wait for the GPU before.
"""


class UpdateTimes:
    """Seconds of one optimizer step by part, in the host's time."""

    def __init__(self) -> None:
        self._last = perf_counter()
        self._seconds: dict[str, float] = {}

    def end(self, part: str) -> None:
        """End a part and begin the next one; later ends of the same part change nothing."""
        if part not in self._seconds:
            now = perf_counter()
            self._seconds[part] = now - self._last
            self._last = now

    def metrics(self) -> dict[str, list[float]]:
        """Return the seconds by metric, each as a list, as verl joins those of workers."""
        return {f"update_{part}_s": [seconds] for part, seconds in self._seconds.items()}


def to_step(metrics: MutableMapping[str, Any], optimizer_steps: int) -> None:
    """Replace means over optimizer steps, as verl reports them, by the seconds of a training step.

    They become `timing_s/update_PART`, next to verl's own times.
    """
    for part in PARTS:
        mean = metrics.pop(f"actor/update_{part}_s", None)
        if mean is not None:
            metrics[f"timing_s/update_{part}"] = float(mean) * optimizer_steps

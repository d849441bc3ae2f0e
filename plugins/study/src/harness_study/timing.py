"""Estimate the duration of a job from measured runs."""

from __future__ import annotations

import heapq
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.errors import HarnessError

if TYPE_CHECKING:
    from harness.config import Config
    from harness.runs.reading import Run

_ALIKE = ("policy", "task", "rollout", "agent", "max_turns", "sampling", "agent_match")


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds of a run: `start_s` once and `step_s` per step; measured on run `source`."""

    start_s: float
    step_s: float
    source: str
    path: Path
    """The folder of that run."""

    def of(self, steps: int) -> float:
        """Return the seconds of so many steps, including the start."""
        return self.start_s + steps * self.step_s


def measured(runs: Sequence[Run]) -> list[tuple[Mapping[str, Any], Timing]]:
    """Return configuration and timing of every finished training."""
    timings: list[tuple[Mapping[str, object], Timing]] = []
    for run in runs:
        result = run.record["result"]
        if result is None or not run.finished or not run.trained:
            continue
        steps, step_s, wall_s = result.get("steps"), result.get("step_s_median"), result["wall_s"]
        if steps and step_s:
            # What the steps do not explain is the start: loading libraries and the policy.
            start_s = max(0.0, wall_s - steps * step_s)
            timing = Timing(start_s, step_s, run.id, run.folder.path)
            timings.append((run.record["config"], timing))
    return timings


def timing_for(config: Config, known: Sequence[tuple[Mapping[str, Any], Timing]]) -> Timing | None:
    """Return the median timing of the most similar runs of the same policy and batch, or None."""
    wanted = config.dump()

    def similarity(other: Mapping[str, Any]) -> int:
        # Other settings of a policy, such as a later version's, hardly change a step's time.
        same_policy = other["policy"].get("path") == wanted["policy"]["path"]
        same_batch = other["train"]["batch_size"] == wanted["train"]["batch_size"]
        if not same_policy or not same_batch:
            return 0
        alike = 1
        for key in _ALIKE:
            alike += other.get(key) == wanted[key]
        return alike

    best = 0
    most_similar: list[Timing] = []
    for other, timing in known:
        similar = similarity(other)
        if similar > best:
            best, most_similar = similar, []
        if similar == best > 0:
            most_similar.append(timing)
    if not most_similar:
        return None
    # The median, since a run on a busy machine may have taken several times as long.
    return Timing(
        statistics.median(timing.start_s for timing in most_similar),
        statistics.median(timing.step_s for timing in most_similar),
        most_similar[-1].source,
        most_similar[-1].path,
    )


def makespan_s(durations_s: Sequence[float], at_once: int) -> float:
    """Return the total time of jobs that start in order on `at_once` places."""
    # Each job starts on the place that is free first, as a launch of the study does it.
    ends = [0.0] * at_once
    for duration_s in durations_s:
        heapq.heapreplace(ends, ends[0] + duration_s)
    return max(ends)


def steps_of(config: Config) -> int | None:
    """Return the training steps of a configuration, or None if its task set cannot be read here."""
    if config.train.steps:
        return config.train.steps
    from harness.plugins import make_task_set
    from harness.training.task_order import trained_on, training_order

    try:
        tasks = make_task_set(config).load(config.task.train_split)
        tasks = trained_on(tasks, config)
        return len(training_order(tasks, config)) // config.train.batch_size
    except HarnessError:
        return None

"""Trainers: from a configuration to a trained policy and a run record."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from harness.config import Config
from harness.results.folder import RunFolder


@dataclass
class Progress:
    """Where a run stands, for a display.

    Attributes:
        phase: What is going on, in a word or two.
        val_curve: Validation accuracy by step; step 0 is before training.
        rollouts_per_s: Finished rollouts per second since the first of this launch.
        remaining_s: Estimate for the steps left, from the median of the last ones.
    """

    phase: str = "starting"
    step: int = 0
    total_steps: int = 0
    reward: float | None = None
    val_curve: dict[int, float] = field(default_factory=dict)
    rollouts: int = 0
    rollouts_per_s: float = 0.0
    failures: dict[str, int] = field(default_factory=dict)
    step_s: float | None = None
    remaining_s: float | None = None


@dataclass
class Job:
    """One training to be done.

    Attributes:
        folder: The run's folder; its `config.yaml` is written.
        resume: Go on from the newest checkpoint in the folder.
        on_progress: Called a few times a second.
    """

    config: Config
    folder: RunFolder
    resume: bool = False
    on_progress: Callable[[Progress], None] = lambda progress: None


class Trainer(Protocol):
    """Trains. Built once a run."""

    def fit(self, job: Job) -> None:
        """Train to the end; everything learned about the run is in its folder, also when this raises.

        Raises:
            RunFailed: The run ended early for a reason that the message names; it can be resumed.
            KeyboardInterrupt: It was interrupted; it can be resumed.
        """

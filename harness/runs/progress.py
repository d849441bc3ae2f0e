"""Progress of a run, for display."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Progress:
    """Progress of a run, for display.

    Attributes:
        phase: The current activity in one or two words.
        done: Finished rollouts of the `expected` ones of this phase.
        mixed: Share of the last step's groups (rollouts of one task) with a gradient: groups with
            different rewards, or with a good rollout if the best are chosen; None if there is none.
        val_curve: Mean validation reward by step, of complete validations; step 0 is before
            training.
        validating: Step of the running validation, to which `done` and `expected` refer; None
            outside of one.
        val_so_far: Mean reward of its scored rollouts.
        graded: Whether means of rewards are no accuracy: the reward declares so, or a value is not
            0 or 1.
        rollouts_per_s: Finished rollouts per second since the first of this launch; 0 in the first
            second.
        remaining_s: Estimate for the remaining steps, from the median of the last ones; for a
            longer running validation, its own estimate; for an evaluation, its rollouts.
        remark: Advice on the course of the training, or empty.
        warning: A problem of the setup, reported once.
    """

    phase: str = "starting"
    done: int = 0
    expected: int = 0
    step: int = 0
    total_steps: int = 0
    reward: float | None = None
    mixed: float | None = None
    val_curve: dict[int, float] = field(default_factory=dict)
    validating: int | None = None
    val_so_far: float | None = None
    graded: bool = False
    rollouts: int = 0
    rollouts_per_s: float = 0.0
    failures: dict[str, int] = field(default_factory=dict)
    step_s: float | None = None
    remaining_s: float | None = None
    remark: str = ""
    warning: str = ""

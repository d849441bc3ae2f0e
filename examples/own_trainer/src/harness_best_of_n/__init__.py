"""harness plugin best_of_n. This module is read to list plugins, so it imports nothing else."""

from __future__ import annotations

from harness import TrainerSpec, hookimpl

HARNESS_API = 1


@hookimpl
def harness_trainers() -> list[TrainerSpec]:
    return [
        TrainerSpec(
            "best_of_n",
            "harness_best_of_n.trainer:BestOfN",
            "no gradient: of n noisy copies of the policy the best one is kept",
            devices=("cpu",),
        )
    ]

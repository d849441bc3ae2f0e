"""harness plugin demonstrations: a trainer that chooses prompts and changes no weights."""

from __future__ import annotations

from harness import TrainerSpec, hookimpl

HARNESS_API = 1


@hookimpl
def harness_trainers() -> list[TrainerSpec]:
    return [
        TrainerSpec(
            "demonstrations",
            "harness_demonstrations.trainer:DemonstrationsTrainer",
            "changes no weights: chooses few-shot demonstrations by successive halving",
            devices=("cpu", "cuda"),
            options="harness_demonstrations.options:DemonstrationsTrainConfig",
        )
    ]

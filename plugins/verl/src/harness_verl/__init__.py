"""verl plugin of harness: the trainer `verl`."""

from __future__ import annotations

from harness import TrainerSpec, hookimpl

HARNESS_API = 1


@hookimpl
def harness_trainers() -> list[TrainerSpec]:
    return [
        TrainerSpec(
            "verl",
            "harness_verl.trainer:VerlTrainer",
            "GRPO, rejection or supervised fine-tuning, by verl's own V1 trainer on Ray",
            devices=("cpu", "cuda", "npu"),
            options="harness_verl.options:VerlTrainConfig",
        )
    ]

"""Whole runs of the trainer, stopped and resumed, through real workers, gateway and policy server."""

from __future__ import annotations

from harness.testing.trainer_contract import TrainerContract


class TestContract(TrainerContract):
    trainer = "best_of_n"
    settings = ("train.learning_rate=0.02",)

"""Whole runs of the trainer, stopped and resumed, through real workers, gateway and policy server."""

from __future__ import annotations

from collections import Counter

import polars as pl

from harness import RunFolder, TrainerContract, make_trainer


class TestContract(TrainerContract):
    trainer = "best_of_n"
    settings = ("train.learning_rate=0.02", "task.val_limit=8")

    def test_every_rollout_ends_well_and_every_step_has_its_checkpoint(
        self, whole: RunFolder
    ) -> None:
        assert list(make_trainer(self.config()).checkpoints(whole)) == [1, 2]
        rows = pl.read_parquet(whole.path / "episodes.parquet")
        assert (rows["outcome"] == "ok").all()
        assert Counter(rows.select("phase", "step").rows()) == {
            ("train", 1): 8,
            ("train", 2): 8,
            ("val", 0): 8,
            ("val", 2): 8,
        }

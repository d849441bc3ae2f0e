"""A whole run of the trainer, killed and resumed, through real workers, gateway and policy server."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import polars as pl

from harness.config import Config, load_config
from harness.results.folder import RunFolder
from harness.run import check, train


def _config(steps: int) -> Config:
    small = [
        "train.batch_size=4",
        "rollout.group_size=2",
        "task.val_limit=8",
        "train.val_every=0",
        f"train.steps={steps}",
    ]
    settings = ["train.trainer=best_of_n", "device=cpu", "train.learning_rate=0.02", f"train.steps={steps}", *small]
    config = load_config("cpu", None, settings, agent="reference_sql")
    check(config)
    return config


def test_trains_validates_and_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    from harness_best_of_n.trainer import BestOfN

    folder = RunFolder.create(tmp_path, "best_of_n")
    train(_config(2), folder)
    record = folder.read()
    assert (record["status"], record["result"]["steps"]) == ("finished", 2)
    assert list(BestOfN().checkpoints(folder)) == [1, 2]
    rows = pl.read_parquet(folder.path / "episodes.parquet")
    assert (rows["outcome"] == "ok").all()
    assert Counter(rows.select("phase", "step").rows()) == {
        ("train", 1): 8,
        ("train", 2): 8,
        ("val", 0): 8,
        ("val", 2): 8,
    }

    folder.checkpoints.joinpath("2.safetensors").unlink()  # as if it had been killed in the second step
    train(_config(2), folder, resume=True)
    again = pl.read_parquet(folder.path / "episodes.parquet")
    keys = ["phase", "step", "task_id", "session"]
    answers = [table.sort(keys)["answer"].to_list() for table in (rows, again)]
    assert answers[0] == answers[1], "a resumed run is another one"

"""A real training with its sides apart, each killed: it learns from the rewards of one that was left alone."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest

from harness.runs.folder import RunFolder
from sides import Sides, wait_for

from .conftest import TWO_STEPS

pytestmark = [pytest.mark.train, pytest.mark.timeout(900)]


def rows(run: Path) -> dict[tuple[Any, ...], tuple[Any, ...]]:
    """What counts of each rollout of a training."""
    found = [
        (
            (row["phase"], row["step"], row["task_id"], row["session"]),
            (row["outcome"], row["reward"], row["used_reward"], row["answer"]),
        )
        for row in RunFolder.open(run).rows("episodes")
    ]
    assert len(found) == len(dict(found)), "a rollout has several rows"
    return dict(found)


def test_each_side_is_killed_and_the_training_is_the_one_that_was_left_alone(
    tmp_path: Path,
    shared: Mapping[str, str],
    left_alone: Callable[[], Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sides = Sides(tmp_path, "")
    try:
        store, runner = sides.store(), sides.runner()
        apart = (
            "--set",
            "rollout.runners=0",
            "--store",
            sides.url,
            "--runs-dir",
            tmp_path / "runs",
        )
        trainer = sides.start("train", "--agent", "reference_sql", *TWO_STEPS, *apart, log="train")

        def trained(step: int) -> bool:
            found = RunFolder(run).rows("episodes")
            return any(row["phase"] == "train" and row["step"] >= step for row in found)

        def wait(condition: Callable[[], Any]) -> Any:
            return wait_for(condition, 400, lambda: sides.output("train"))

        run = wait(lambda: next((tmp_path / "runs").glob("*"), None))
        wait(lambda: (run / "run.json").exists() and trained(1))
        store.kill()
        store.wait()
        store = sides.store()
        wait(lambda: trained(2))
        trainer.kill()
        trainer.wait()
        for process in (runner, store):
            process.kill()
            process.wait()
        sides.move()
        store = sides.store()
        sides.runner()  # before the trainer is back
        for name, value in shared.items():
            monkeypatch.setenv(name, value)
        again = sides.start("train", "--resume", run, "--store", sides.url, log="train")
        assert again.wait(400) == 0, sides.output("train")[-3000:]
        assert rows(run) == rows(left_alone())
        record = json.loads((run / "run.json").read_text())
        assert record["status"] == "finished" and record["result"]["steps"] == 2
        shown = {"Authorization": f"Bearer {sides.key_file.read_text().strip()}"}
        assert httpx.get(f"{sides.url}/runs", headers=shown, trust_env=False).json() == {"runs": []}
        assert store.poll() is None
    finally:
        sides.end()

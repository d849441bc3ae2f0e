"""A real training is watched while it runs: what is shown is what its record says in the end."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from harness.runs.folder import RunFolder
from harness_watch.view import View

pytestmark = [pytest.mark.train, pytest.mark.timeout(900)]


def test_a_training_is_seen_while_it_runs(tmp_path: Path, shared: Mapping[str, str]) -> None:
    sizes = ("train.batch_size=2", "rollout.group_size=2", "task.val_limit=4", "train.save_every=0")
    command = [sys.executable, "-m", "harness", "train", "--agent", "reference_sql", "--steps", "2"]
    command += ["--runs-dir", str(tmp_path), *(word for size in sizes for word in ("--set", size))]
    with (tmp_path / "log").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, **shared})
    seen: dict[str, int] = {}
    view: View | None = None
    while process.poll() is None:
        found = next(tmp_path.glob("*/run.json"), None)
        if found is not None:
            view = view or View(found.parent)
            state = view.look(".")
            if state.found["live"].state == "running":
                seen[state.found["live"].message] = state.found["browser"]["total"]
        time.sleep(0.2)
    assert process.returncode == 0 and view is not None, (tmp_path / "log").read_text()[-2000:]
    time.sleep(1)
    last = view.look(".").found
    assert any(0 < total < last["browser"]["total"] for total in seen.values()), seen
    record = RunFolder.open(view.root).read()
    assert last["live"].message.startswith("finished, step 2 of 2") and record["result"] is not None
    rows = {chart["id"]: chart["data"][-1] for chart in last["charts"]}
    assert rows["entropy"]["x"] == rows["speed"]["x"] == rows["lengths"]["x"] == [1, 2]
    assert dict(zip(rows["validation"]["x"], rows["validation"]["y"], strict=True)) == {
        int(step): value for step, value in record["result"]["val_curve"].items()
    }
    opened = view.opened(".", record["id"], last["browser"]["episodes"][0]["id"])
    assert any(step.get("role") == "write_query" for step in opened["steps"])

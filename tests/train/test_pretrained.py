"""Pre-trained weights are trained on a CPU too, slowly."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet
import pytest

from harness.policies.catalogue import cached_dir

POLICY = "smollm2-135m"


@pytest.mark.train
@pytest.mark.timeout(1800)
def test_a_step_of_pretrained_weights_on_a_cpu(tmp_path: Path) -> None:
    if not cached_dir(POLICY).is_dir():
        pytest.skip(f"needs pre-trained weights: harness policy fetch {POLICY}")
    settings = (
        *(f"policy.path={POLICY}", "max_turns=1", "sampling.max_response_tokens=24"),
        *(
            "train.steps=1",
            "train.batch_size=2",
            "rollout.group_size=2",
            "train.val_every=0",
            "task.val_limit=2",
        ),
    )
    done = subprocess.run(
        [
            *(
                sys.executable,
                "-m",
                "harness",
                "train",
                "--plugin",
                "reference_sql",
                "--runs-dir",
                str(tmp_path),
            ),
            *(part for setting in settings for part in ("--set", setting)),
        ],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    (folder,) = tmp_path.iterdir()
    record = json.loads((folder / "run.json").read_text())
    assert (record["status"], record["result"]["steps"]) == ("finished", 1)
    rows = pyarrow.parquet.read_table(folder / "episodes.parquet").to_pylist()
    assert len(rows) == 2 * 2 + 2 * 2 and all(row["reward"] is not None for row in rows)
    calls = pyarrow.parquet.read_table(folder / "transitions.parquet").to_pylist()
    assert all(0 < len(one["response_ids"]) <= 24 for one in calls)

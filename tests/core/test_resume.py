"""What may change when a run goes on."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from harness.cli.train import app
from harness.config import load_config
from harness.results.folder import RunFolder


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = RunFolder.create(tmp_path, "reference_sql")
    folder.write_config(load_config("cpu", plugin="reference_sql"))
    folder.write({"status": "interrupted"})
    return folder.path


@pytest.mark.parametrize("change", ["train.steps=30", "policy.path=/elsewhere", "rollout.runners=3"])
def test_how_far_and_where_may_change(run: Path, change: str) -> None:
    done = CliRunner().invoke(app, ["--resume", str(run), "--set", change, "--dry-run"])
    assert done.exit_code == 0, done.output


@pytest.mark.parametrize("change", ["train.learning_rate=1e-3", "max_turns=1", "plugin=langgraph_sql", "seed=4"])
def test_what_would_be_another_run_is_refused(run: Path, change: str) -> None:
    key = change.partition("=")[0]
    done = CliRunner().invoke(app, ["--resume", str(run), "--set", change, "--dry-run"])
    assert done.exit_code != 0 and f"--resume with {key}=" in f"{done.output}{done.exception}"

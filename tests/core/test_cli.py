"""What the command line says to those who ask for something that it cannot do, and while it works."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from harness.cli import app as harness
from harness.errors import ConfigError, EnvironmentProblem


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")


@pytest.mark.usefixtures("no_gpu")
@pytest.mark.parametrize("command", [["train"], ["eval", "--model", "pocket-sql"]])
def test_a_gpu_where_there_is_none_is_refused_before_anything_is_made(tmp_path: Path, command: list[str]) -> None:
    runs = tmp_path / "runs"
    done = CliRunner().invoke(harness, [*command, "--preset", "gpu", "--runs-dir", str(runs)])
    assert isinstance(done.exception, EnvironmentProblem), done.output
    said = str(done.exception)
    assert "--preset cpu" in said and "harness doctor" in said and "\n" not in said
    assert not runs.exists()


def test_what_the_trainer_refuses_leaves_no_folder(tmp_path: Path) -> None:
    options = ["--preset", "cpu", "--plugin", "reference_sql", "--set", "train.mini_batch_size=99"]
    done = CliRunner().invoke(harness, ["train", *options, "--runs-dir", str(tmp_path)])
    assert isinstance(done.exception, ConfigError) and "mini_batch_size" in str(done.exception)
    assert list(tmp_path.iterdir()) == []

"""What the command line says to those who ask for something that it cannot do, and while it works."""

from __future__ import annotations

from io import StringIO
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console
from typer.testing import CliRunner

from harness.cli import app as harness
from harness.cli import display
from harness.cli.train import _advice, _keep_start_s, _start_s
from harness.config import load_config
from harness.errors import ConfigError, EnvironmentProblem
from harness.trainers import Progress


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


def test_without_a_terminal_a_validation_and_an_evaluation_are_counted_in_lines(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    out = StringIO()
    now = iter(range(0, 1000, 20))
    monkeypatch.setattr(display, "time", SimpleNamespace(monotonic=lambda: next(now)))
    console = Console(file=out, width=200)
    view = display.TrainingDisplay(console, "title", 12.0)
    view.show(Progress())
    assert view.start_s is None
    view.show(Progress("validating (0)", 3, 9))
    assert view.start_s is not None and "validating (0): 3 of 9 rollouts" in out.getvalue()
    with display.counted(console, "x on y") as show:
        show(1, 2)
        show(2, 2)
    assert "x on y: 1 of 2  20 s  left 20 s" in out.getvalue() and "x on y: 2 of 2" in out.getvalue()


def test_on_a_terminal_the_last_start_is_told() -> None:
    body = display.TrainingDisplay(Console(file=StringIO()), "title", 42.0)._body(Progress())
    assert "starting, which took 42 s the last time" in body


def test_what_a_start_took_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HARNESS_CACHE_DIR", str(tmp_path / "cache"))
    config, other = load_config("cpu"), load_config("cpu", None, ["policy.path=other"])
    assert _start_s(config) is None
    _keep_start_s(config, 41.26)
    assert (_start_s(config), _start_s(other)) == (41.3, None)
    (tmp_path / "cache" / "starts.json").write_text("[]")
    assert _start_s(config) is None


def test_a_remark_is_said_once_with_advice_on_a_policy_of_another_task() -> None:
    out = StringIO()
    config = load_config("cpu", None, ["task.name=files"])
    view = display.TrainingDisplay(Console(file=out, width=400), "title", None, _advice(config))
    for _ in range(2):
        view.show(Progress("step 3", remark="no gradient"))
    assert out.getvalue().count("no gradient, or another policy.path: pocket-sql speaks only") == 1
    assert _advice(load_config("cpu")) == ""

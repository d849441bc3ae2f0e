"""What the command line says to those who ask for something that it cannot do, and while it works."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from io import BytesIO, StringIO, TextIOWrapper
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from episode_rows import episode_of
from harness.api import display
from harness.api.evaluating import of_a_run
from harness.api.start import keep_start_s, measured_start_s
from harness.api.summaries import summary
from harness.api.training import _advice
from harness.cli import app as harness
from harness.cli import logs, main
from harness.cli.complete import settings
from harness.config import load_config
from harness.errors import ConfigError, EnvironmentProblem
from harness.runs import monitor
from harness.runs.folder import RowLog, RunFolder
from harness.runs.progress import Progress
from harness.training.evaluation import accuracy_of
from harness.util.formatting import rate


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")


@pytest.mark.usefixtures("no_gpu")
@pytest.mark.parametrize("command", [["train"], ["eval", "--model", "pocket-sql"]])
def test_a_gpu_where_there_is_none_is_refused_before_anything_is_made(
    tmp_path: Path, command: list[str]
) -> None:
    runs = tmp_path / "runs"
    done = CliRunner().invoke(harness, [*command, "--preset", "gpu", "--runs-dir", str(runs)])
    assert isinstance(done.exception, EnvironmentProblem), done.output
    message = str(done.exception)
    assert "--preset cpu" in message and "harness doctor" in message and "\n" not in message
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
    view = display.TrainingDisplay(console, "title", ", which took about 10 s last time")
    view.show(Progress())
    assert view.start_s is None
    view.show(Progress("validating after step 0", 3, 9))
    assert (
        view.start_s is not None
        and "validating after step 0: 3 of 9 rollouts; running for " in out.getvalue()
    )
    with display.counted(console, "x on y") as show:
        show(1, 2)
        show(2, 2)
    assert (
        "x on y: 1 of 2; running for 20 s, 20 s left" in out.getvalue()
        and "x on y: 2 of 2" in out.getvalue()
    )


def test_on_a_terminal_the_last_start_is_told() -> None:
    body = display.TrainingDisplay(
        Console(file=StringIO()), "title", ", which took about 40 s last time"
    )._body(Progress())
    assert "starting, which took about 40 s last time; running for " in body


def test_debug_shows_what_is_added_to_logs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old, new = tmp_path / "old.log", tmp_path / "new.log"
    old.write_text("known\n")
    with logs.followed(tmp_path):
        assert os.environ["HARNESS_LOG_LEVEL"] == "INFO"
        with old.open("a") as log:
            log.write("added\n")
        new.write_bytes(b"whole\n\xff half")
    assert "HARNESS_LOG_LEVEL" not in os.environ
    assert capsys.readouterr().err.splitlines() == [
        "new.log: whole",
        "new.log: \ufffd half",
        "old.log: added",
    ]


def test_a_named_split_is_asked_whole_whatever_the_training_took_of_its_own(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path, "reference_sql")
    folder.write_config(load_config("cpu", None, ["task.val_limit=8"], agent="reference_sql"))
    limits = {
        settings: of_a_run(folder, settings.split(), None).task.val_limit
        for settings in ("", "task.val_split=all", "task.val_split=all task.val_limit=3")
    }
    assert list(limits.values()) == [8, None, 3]


def test_what_a_start_took_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HARNESS_CACHE_DIR", str(tmp_path / "cache"))
    config, other = load_config("cpu"), load_config("cpu", None, ["policy.path=other"])
    assert measured_start_s(config) is None
    keep_start_s(config, 41.26)
    assert (measured_start_s(config), measured_start_s(other)) == (41.3, None)
    (tmp_path / "cache" / "starts.json").write_text("[]")
    assert measured_start_s(config) is None


def test_a_remark_is_said_once_with_advice_on_a_policy_of_another_task() -> None:
    out = StringIO()
    config = load_config("cpu", None, ["task.name=files"])
    view = display.TrainingDisplay(Console(file=out, width=400), "title", "", _advice(config))
    for _ in range(2):
        view.show(Progress("step 3", remark="no gradient"))
    assert out.getvalue().count("no gradient, or another policy.path: pocket-sql speaks only") == 1
    assert _advice(load_config("cpu")) == ""


def test_the_line_of_a_step_has_groups_that_differ_and_no_rate_of_an_instant(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = StringIO()
    view = display.TrainingDisplay(Console(file=out, width=400), "title")
    view.show(
        Progress("step 1", step=1, total_steps=20, reward=0.25, mixed=0.375, rollouts_per_s=1234.6)
    )
    assert (
        "1 of 20 steps done: reward 0.250, groups with different rewards 37.5 %, 1,235 rollouts per s\n"
        in out.getvalue()
    )
    assert [rate(0), rate(0.42), rate(52.4)] == ["-", "0.4", "52"]
    folder, now = RunFolder.create(tmp_path, "x"), [100.0]
    monkeypatch.setattr(monitor, "time", SimpleNamespace(monotonic=lambda: now[0]))
    watch = monitor.Monitor(folder, 2, {"train": 8, "val": 2}, 0.5)
    RowLog(folder, "episodes").add([episode_of(1, 1.0)] * 4)
    now[0] += 0.001
    assert watch.poll().rollouts == 4 and watch.progress.rollouts_per_s == 0
    now[0] += 8
    assert watch.poll().rollouts_per_s == 0.5


@pytest.fixture
def shell(tmp_path: Path) -> Callable[[str], list[str]]:
    """What bash completes the last word of a line to, with the script that harness prints for it."""
    runs = tmp_path / "runs" / "20261122-reference_sql-ab12"
    runs.mkdir(parents=True)
    (runs / "run.json").write_text("{}")
    program = tmp_path / "bin" / "harness"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m harness "$@"\n')
    program.chmod(0o755)
    environment = {**os.environ, "PATH": f"{program.parent}:{os.environ['PATH']}"}

    def complete(line: str) -> list[str]:
        words = " ".join(shlex.quote(word) for word in line.split(" "))
        script = (
            'eval "$(_HARNESS_COMPLETE=source_bash harness)"; '
            f"COMP_WORDS=({words}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); _harness_completion harness; "
            "printf '%s\\n' \"${COMPREPLY[@]}\""
        )
        command = ["bash", "--norc", "-c", script]
        done = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60
        )
        assert done.stderr == ""
        return done.stdout.split()

    return complete


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("harness tra", ["train"]),
        ("harness runs sh", ["show"]),
        ("harness train --plugin reference_s", ["reference_sql"]),
        ("harness train --preset gpu-", ["gpu-spider"]),
        ("harness tasks --name poc", ["pocket", "pocket_probe", "pocket_split"]),
        (
            "harness train --set train.tr",
            ["train.trainer=demonstrations", "train.trainer=verl"],
        ),
        ("harness train --set train.st", ["train.steps="]),
        ("harness runs list --status f", ["finished", "failed"]),
        ("harness compare --format la", ["latex"]),
        ("harness train --resume ru", ["runs/20261122-reference_sql-ab12"]),
        ("harness compare ru", ["runs/20261122-reference_sql-ab12"]),
        ("harness plugins sync langg", ["langgraph_sql"]),
    ],
)
def test_bash_completes(shell: Callable[[str], list[str]], line: str, found: list[str]) -> None:
    assert shell(line) == found


def test_settings_complete_to_their_values_or_to_where_these_go() -> None:
    assert settings("dev") == ["device=auto", "device=cpu", "device=cuda", "device=npu"]
    assert settings("train.cred") == [
        "train.credit=shared",
        "train.credit=turn",
        "train.credit=role",
    ]
    assert settings("reward.op") == ["reward.options."] and settings("see") == ["seed="]


@pytest.mark.parametrize(("near", "hint"), [("trian", "; did you mean 'train'?"), ("zzz", ".")])
def test_a_misspelt_command_is_answered_with_the_nearest(
    near: str, hint: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["harness", near])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert (
        capsys.readouterr().err == f"harness: No such command {near!r}{hint} Try: harness --help\n"
    )


@pytest.mark.parametrize(
    ("near", "right"),
    [
        ("plugins list", "harness plugins"),
        ("tasks ls --json", "harness tasks --json"),
        ("tasks pocket", "harness tasks --name pocket"),
        ("match --plugin reference_sql", "harness match reference_sql"),
        ("match reference_sql check", "harness match reference_sql --agent-match check"),
        ("runs ls", "harness runs list"),
        ("train reference_sql --seed 1", "harness train --agent reference_sql --seed 1"),
        ("train gpu", "harness train --preset gpu"),
        ("study smoke --resume --jobs 2", "harness study smoke --jobs 2"),
    ],
)
def test_what_is_nearly_a_command_is_answered_with_it(
    near: str, right: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["harness", *near.split()])
    with pytest.raises(SystemExit) as ended:
        main()
    output = capsys.readouterr().err
    assert (
        ended.value.code == 2
        and output.endswith(f"Did you mean `{right}`?\n")
        and output.count("Did you mean") == 1
    )


def test_a_mean_of_graded_rewards_is_no_accuracy(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [
        {
            "task_id": str(n),
            "cluster": "c",
            "difficulty": "",
            "reward": reward,
            "outcome": "ok",
            "reward_flags": [],
        }
        for n, reward in enumerate((0.0, 1.0, None, 1.0))
    ]
    assert (
        accuracy_of(rows, 4)["graded"] is False
        and accuracy_of(rows, 4, graded=True)["graded"] is True
    )
    rows[0]["reward"] = 0.5
    result = accuracy_of(rows, 4) | {"wall_s": 1.0}
    assert result["graded"] is True
    text = summary(RunFolder(Path("r")), {"kind": "eval", "agent": "x", "result": result})
    assert (
        "x: mean reward 0.833" in text
        and "accuracy" not in text
        and "%" not in text.replace("95 %", "")
    )


@pytest.mark.parametrize(("kept", "message"), [("", ""), ("step 5 is kept", ": step 5 is kept")])
def test_an_interruption_ends_in_one_line(
    kept: str, message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(run: Path) -> None:
        raise KeyboardInterrupt(*filter(None, [kept]))

    monkeypatch.setattr(RunFolder, "open", interrupted)
    monkeypatch.setattr(sys, "argv", ["harness", "train", "--resume", "x"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 130 and capsys.readouterr().err == f"harness: interrupted{message}\n"


def test_an_interruption_while_python_imports_ends_in_one_line() -> None:
    interrupted = """
import sys

class Interrupted:
    def find_spec(self, name, *more):
        if name == "typer":
            raise KeyboardInterrupt

sys.meta_path.insert(0, Interrupted())
from harness.__main__ import main
main()
"""
    done = subprocess.run(
        [sys.executable, "-c", interrupted], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (130, "harness: interrupted\n")


def test_a_training_that_is_not_installed_is_told_before_it_is_announced(tmp_path: Path) -> None:
    without = """
import importlib.util
import sys

found = importlib.util.find_spec
importlib.util.find_spec = lambda name, *more: None if name.partition(".")[0] == "verl" else found(name, *more)
from harness.__main__ import main
main()
"""
    command = [
        sys.executable,
        "-c",
        without,
        "train",
        "--plugin",
        "reference_sql",
        "--preset",
        "cpu",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1), done.stderr
    assert done.stderr.startswith("harness: training is not installed: `") and not list(
        tmp_path.iterdir()
    )


def test_what_the_terminals_encoding_lacks_is_escaped(monkeypatch: pytest.MonkeyPatch) -> None:
    written = BytesIO()
    monkeypatch.setattr(sys, "stdout", TextIOWrapper(written, encoding="ascii"))
    monkeypatch.setattr(sys, "argv", ["harness"])
    monkeypatch.setattr("harness.cli.app", lambda **_: sys.stdout.write("\u60a3 \ud800\n"))
    with pytest.raises(SystemExit):
        main()
    sys.stdout.flush()
    assert written.getvalue() == b"\\u60a3 \\ud800\n"


def test_a_machine_that_starts_no_more_threads_is_told_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(error: Exception) -> Callable[..., None]:
        def app(**_: Any) -> None:
            raise error

        return app

    monkeypatch.setattr("harness.cli.app", fails(RuntimeError("can't start new thread")))
    with pytest.raises(SystemExit, match="2"):
        main()
    assert capsys.readouterr().err.startswith(
        "harness: no further thread or process can be started: raise the limit"
    )
    monkeypatch.setattr("harness.cli.app", fails(RuntimeError("a fault of ours")))
    with pytest.raises(RuntimeError, match="of ours"):
        main()

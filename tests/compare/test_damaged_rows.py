"""Damaged lines in logs of a run under way: named by file and line, and no other run is lost."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from episode_rows import episode_of
from harness.errors import UserError
from harness.runs.folder import RowLog, RunFolder
from harness.runs.monitor import Follower

from .synthetic import write_run

Command = Callable[..., subprocess.CompletedProcess[str]]
EPISODES: list[tuple[Any, str]] = [
    ("garbage", "it is no row"),
    ("[]", "it is no row"),
    ("5", "it is no row"),
    ('{"step": 1}', "it has no elapsed_s"),
    ({"phase": "test"}, "its phase is 'test'"),
    ({"step": None}, "its step is None"),
    ({"step": "1"}, "its step is '1'"),
    ({"step": 10**30}, "its step is 1000000000000000000000000000000"),
    ({"task_id": ["a"]}, r"its task_id is \['a'\]"),
    ({"reward": "high"}, "its reward is 'high'"),
    ({"reward": 10**400}, "its reward is 1000"),
    ({"transitions": None}, "its transitions is None"),
    ({"reward_flags": ["a", 1]}, r"its reward_flags is \['a', 1\]"),
    ({"answer": "\ud800"}, r"its answer is '\\ud800'"),
    ({"started_s": {}}, r"its started_s is \{\}"),
]
STEPS: list[tuple[str, str]] = [
    ("garbage", "it is no row"),
    ('{"step": 1}', "it has no data"),
    ('{"step": 1.5, "data": {}}', "its step is 1.5"),
    ('{"step": 1, "data": [1]}', r"its data is \[1\]"),
]


@pytest.fixture(scope="module")
def under_way(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of two runs, the second of which is under way."""
    root = tmp_path_factory.mktemp("runs")
    write_run(root, val_limit=4, steps=2)
    running = write_run(root, val_limit=4, steps=2)
    running.update(status="running", result=None)
    for table in running.path.glob("*.parquet"):
        table.unlink()
    return running.path


def append(run: Path, kind: str, line: Any) -> tuple[Path, int]:
    """Append a line, or the last row with some changes; return the file and the line's number."""
    log = next((run / "logs").glob(f"{kind}-*.jsonl"))
    lines = log.read_text().splitlines()
    text = line if isinstance(line, str) else json.dumps({**json.loads(lines[-1]), **line})
    log.write_text("\n".join([*lines, text, ""]))
    return log, len(lines) + 1


@pytest.mark.parametrize(
    ("kind", "line", "message"),
    [
        *[("episodes", line, message) for line, message in EPISODES],
        *[("steps", line, message) for line, message in STEPS],
    ],
)
def test_a_damaged_line_is_named_and_leaves_other_runs_alone(
    kind: str, line: Any, message: str, under_way: Path, tmp_path: Path, command: Command
) -> None:
    runs = Path(shutil.copytree(under_way.parent, tmp_path / "runs"))
    bad = runs / under_way.name
    log, number = append(bad, kind, line)
    named = rf"line {number} of {log} is damaged: {message}"
    with pytest.raises(UserError, match=named):
        list(RunFolder(bad).rows(kind))  # type: ignore[call-overload]
    for arguments in (("runs", "show", bad), ("report", bad, "--out", tmp_path / "report.html")):
        done = command(*arguments)
        assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
        assert f"line {number} of {log} is damaged" in done.stderr
    listed = command("runs", "list", "--runs-dir", runs, "--json")
    assert listed.returncode == 0, listed.stderr
    assert [row["id"] for row in json.loads(listed.stdout)] == [
        path.name for path in sorted(runs.iterdir()) if path != bad
    ]
    assert listed.stderr.startswith(f"harness: left out: line {number} of {log}")


def test_rows_of_logs_without_a_value_that_groups_them_are_named_by_the_logs(
    under_way: Path, tmp_path: Path, command: Command
) -> None:
    run = Path(shutil.copytree(under_way, tmp_path / under_way.name))
    append(run, "episodes", {"cluster": None})
    done = command("runs", "show", run)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    logs = re.escape(str(run / "logs" / "episodes-*.jsonl"))
    assert re.search(
        rf"{logs}: the column cluster has no value in 1 of \d+ rows\. Restore the logs from a copy$",
        done.stderr,
    )


def test_the_run_is_listed_while_its_rows_are_whole(under_way: Path, command: Command) -> None:
    listed = command("runs", "list", "--runs-dir", under_way.parent)
    assert (listed.returncode, listed.stderr) == (0, "")
    assert all(path.name in listed.stdout for path in under_way.parent.iterdir())


def test_lines_are_counted_over_several_looks_and_no_row_is_lost(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path, "x")
    follower = Follower(folder, 1, {"train": 8, "val": 8})
    log = RowLog(folder, "episodes")
    log.add([episode_of(1, 1.0)] * 2)
    assert follower.look().rollouts == 2
    log.add([episode_of(1, 0.0)])
    (path,) = folder.logs.glob("episodes-*.jsonl")
    whole = path.read_bytes()
    path.write_bytes(whole + b"garbage\n")
    for _ in range(2):
        with pytest.raises(UserError, match=r"line 4 of .*episodes-"):
            follower.look()
    path.write_bytes(whole)  # the line is taken out, as the message advises
    assert follower.look().rollouts == 3


@pytest.mark.parametrize("figure", ["text", [1], None, {"a": 1}])
def test_a_figure_of_a_step_that_is_no_number_counts_as_missing(
    figure: object, tmp_path: Path
) -> None:
    folder = RunFolder.create(tmp_path, "x")
    data = {"step_s": figure, "left_out": figure, "taught_calls": 1}
    RowLog(folder, "steps").add([{"step": 1, "data": data}])
    assert Follower(folder, 2, {"train": 8, "val": 8}).look().step == 0
    RowLog(folder, "steps").add([{"step": 2, "data": {**data, "step_s": 2.5}}])
    progress = Follower(folder, 2, {"train": 8, "val": 8}).look()
    assert (progress.step, progress.step_s, progress.warning) == (2, 2.5, "")

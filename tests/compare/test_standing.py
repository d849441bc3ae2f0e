"""A run that has not ended shows where it stands, by the rows on disk, and takes no part of a validation for one."""

from __future__ import annotations

import fcntl
import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from threading import Timer
from typing import Any

import pytest

from harness.compare.selection import select
from harness.errors import UserError
from harness.plugins import load, task_set_spec
from harness.runs.folder import RowLog, RunFolder
from harness.runs.reading import read_run
from harness.training.task_order import validation_order
from harness_report.page import write_report

from .synthetic import Writer, write_run

Command = Callable[..., "subprocess.CompletedProcess[str]"]


def under_way(folder: RunFolder, step: int, tasks: int, rewarded: float = 1.0) -> RunFolder:
    """The run again as it was amid the validation after a step, `tasks` of whose questions were answered."""
    config = folder.config()
    writer = Writer(folder, config, False, False)
    for task in validation_order(load(task_set_spec("pocket"))().load("val"), config)[:tasks]:
        writer.episode(task, "val", step, 0, rewarded, 2)
    folder.update(status="running", result=None)
    return folder


@pytest.fixture
def training(tmp_path: Path) -> RunFolder:
    """At step 4 of 8, validated after steps 0, 2 and 4, and 15 of 20 questions into a validation after step 5."""
    made = write_run(
        tmp_path / "runs",
        steps=8,
        status="interrupted",
        val_limit=20,
        step_s=2.0,
        accuracy=(0.0, 0.5),
    )
    return under_way(made, 5, 15)


def test_a_running_training_shows_its_steps_and_what_is_left(
    training: RunFolder, command: Command
) -> None:
    runs = training.path.parent
    (row,) = json.loads(command("runs", "list", "--runs-dir", runs, "--json").stdout)
    assert (row["steps"], row["steps_total"], row["left_s"]) == (4, 8, 8.0)
    assert row["validating"] == {"step": 5, "rollouts": 15, "of": 20, "mean": 1.0}
    assert row["accuracy_initial"] == 0.0 and row["accuracy_final"] is None
    listed = command("runs", "list", "--runs-dir", runs, COLUMNS="160").stdout
    assert (
        "4 of 8" in listed
        and "0.0 % -> 100.0 % so far (15 of 20)" in listed
        and "left 8 s" in listed
    )
    shown = command("runs", "show", training.path).stdout
    curve = next(line for line in shown.splitlines() if line.startswith("accuracy"))
    assert curve.endswith("5: 100.0 % so far (15 of 20)") and curve.count("so far") == 1
    assert "4 of 8, 2.0 s each" in shown and "about 8 s" in shown
    summary = json.loads(command("runs", "show", training.path, "--json").stdout)
    assert summary["progress"] == {
        key: row[key] for key in ("steps", "steps_total", "abandoned", "validating", "left_s")
    }
    assert (
        list(summary["figures"]["val_curve"]) == ["0", "2", "4"]
        and summary["figures"]["steps"] == 4
    )


@pytest.mark.parametrize("columns", [80, 100, 140])
def test_a_list_of_runs_fits_the_terminal_and_leaves_ids_whole(
    columns: int, tmp_path: Path, command: Command
) -> None:
    runs = tmp_path / "runs"
    alone = write_run(runs, val_limit=20).path
    long = alone.rename(runs / f"20261120-101500-{'_'.join(6 * ['first_sql'])}-a1b2")
    of_study = [write_run(runs / "study", seed=seed, val_limit=20).path for seed in (0, 1)]
    command_line = ("runs", "list", "--runs-dir", runs)
    listed = command(*command_line, COLUMNS=str(columns)).stdout.splitlines()
    assert max(map(len, listed)) <= columns
    assert listed[0].startswith("run ") and "accuracy" in listed[0]
    assert ("trained roles" in listed[0]) == (columns > 80)
    assert ("agent" in listed[0]) == (columns == 140)
    assert listed[2:4] == ["./", long.name] and sum("finished" in line for line in listed) == 3
    below = listed[listed.index("study/") + 1 :]
    assert {line.split()[0] for line in below} == {path.name for path in of_study}


def test_an_id_names_a_run_of_a_study_and_no_two_runs(tmp_path: Path, command: Command) -> None:
    runs = tmp_path / "runs"
    one = write_run(runs / "study", val_limit=20)
    assert select([Path(one.id)], runs).runs[0].folder.path == one.path
    shutil.copytree(runs / "study", runs / "copied")
    with pytest.raises(UserError, match=f"2 runs in .*: copied/{one.id}, study/{one.id}. Give"):
        select([Path(one.id)], runs)
    for name in ("d", "e", "f"):
        shutil.copytree(runs / "study", runs / name)
    with pytest.raises(UserError, match=f"5 runs in .*: copied/.*, d/.*, e/{one.id} and 2 more. "):
        select([Path(one.id)], runs)


def test_a_run_that_was_killed_has_nothing_left(training: RunFolder, command: Command) -> None:
    runs = training.path.parent
    (training.path / ".lock").touch()  # and no process holds it
    (row,) = json.loads(command("runs", "list", "--runs-dir", runs, "--json").stdout)
    assert (row["status"], row["abandoned"], row["left_s"]) == ("running", True, None)
    listed = command("runs", "list", "--runs-dir", runs, COLUMNS="160").stdout
    shown = command("runs", "show", training.path).stdout
    assert "killed?" in listed and "killed?" in shown
    assert "left 8 s" not in listed and "about 8 s" not in shown


def test_what_is_left_of_the_last_validation_is_not_nothing(training: RunFolder) -> None:
    RowLog(training, "steps").add(
        [{"step": step, "data": {"step_s": 2.0}} for step in (5, 6, 7, 8)]
    )
    under_way(training, 8, 10)
    progress = read_run(training.path).progress
    assert (progress.step, progress.validating) == (8, 8) and progress.remaining_s == pytest.approx(
        10, 0.2
    )


def test_rows_count_and_not_the_tables_of_an_earlier_launch(training: RunFolder) -> None:
    assert (training.path / "episodes.parquet").is_file()
    assert len(read_run(training.path).validation(5)) == 15
    training.update(status="interrupted")
    assert read_run(training.path).progress.remaining_s is None


def test_a_report_of_a_running_run_says_where_it_stands(
    training: RunFolder, tmp_path: Path
) -> None:
    text = write_report(select([training.path]), tmp_path / "report.html").read_text()
    assert "step 4 of 8, " in text and "100.0 % so far (15 of 20) after step 5, left 8 s" in text
    assert ">4 of 8<" in text and ">left 8 s<" in text


def test_an_evaluation_under_way_has_no_accuracy_yet(tmp_path: Path, command: Command) -> None:
    made = write_run(tmp_path / "runs", kind="eval", val_limit=20)
    for log in made.logs.glob("*.jsonl"):
        log.unlink()
    under_way(made, 0, 15)
    (row,) = json.loads(command("runs", "list", "--runs-dir", made.path.parent, "--json").stdout)
    assert (
        row["validating"]["rollouts"] == 15
        and row["accuracy_final"] is None
        and row["left_s"] == pytest.approx(5, 0.2)
    )
    shown = command("runs", "show", made.path).stdout
    assert "100.0 % so far (15 of 20)" in shown


def test_a_finished_run_shows_all_of_its_steps(tmp_path: Path, command: Command) -> None:
    made = write_run(tmp_path / "runs", steps=4, val_limit=20)
    shown = command("runs", "show", made.path).stdout
    assert "4 of 4, " in shown and "so far" not in shown and "left" not in shown
    summary: Any = json.loads(command("runs", "show", made.path, "--json").stdout)["progress"]
    assert summary == {
        "steps": 4,
        "steps_total": 4,
        "abandoned": False,
        "validating": None,
        "left_s": None,
    }


def test_a_run_that_ended_after_its_record_was_read_is_not_killed(
    write_run: Callable[..., RunFolder],
) -> None:
    folder = write_run(status="running")
    with folder.locked():
        run, other = read_run(folder.path), read_run(folder.path)
        assert run.state == "running"
    assert other.state == "killed?" and other.progress.remaining_s is None
    ended = read_run(folder.path)
    folder.update(status="finished")
    assert ended.record["status"] == "running" and ended.state == "running"


def test_checks_of_who_holds_a_run_exclude_no_one(write_run: Callable[..., RunFolder]) -> None:
    folder = write_run(status="running")
    assert not folder.is_held()
    with (folder.path / ".lock").open("w") as other_check:
        fcntl.flock(other_check, fcntl.LOCK_SH)
        assert not folder.is_held()
    with folder.locked():
        assert folder.is_held()
    lock = (folder.path / ".lock").open()
    fcntl.flock(lock, fcntl.LOCK_SH)
    Timer(0.1, lock.close).start()
    with folder.locked():  # waits for the check
        assert folder.is_held()

"""`harness study --launcher slurm` on a real slurmctld and slurmd: found again, cancelled, without its node."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from .slurm import Cluster, cluster, lacking, wait_until

pytestmark = [
    pytest.mark.slurm,
    pytest.mark.skipif(bool(lacking()), reason=lacking() or "-"),
    pytest.mark.timeout(600),
]
SECRET = "sk-never-on-a-command-line"
ON_SLURM = ("--launcher", "slurm", "--launch", "poll_s=0.2")
Harness = Callable[..., "subprocess.CompletedProcess[str]"]
Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with cluster(tmp_path_factory.mktemp("slurm")) as made:
        yield made


@pytest.fixture
def slurm(whole: Cluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    monkeypatch.setenv("SLURM_CONF", str(whole.file))
    monkeypatch.setenv("OPENAI_API_KEY", SECRET)
    yield whole
    whole.clear()


@pytest.fixture
def gate(tmp_path: Path) -> Path:
    """Runs with `verl.gate` wait after their first validation until this file is there."""
    return tmp_path / "gate"


@pytest.fixture
def one_run(study_file: Path, gate: Path) -> tuple[str, ...]:
    only = ("--seeds", "0", "--only", "max_turns=one turn")
    return ("study", str(study_file), *only, *ON_SLURM, "--set", f"verl.gate={gate}")


def runs(folder: Path) -> list[Any]:
    return [json.loads(path.read_text()) for path in sorted(folder.glob("*/run.json"))]


def held(folder: Path) -> bool:
    """Whether a run of the study is at its gate."""
    return any(path.read_text() == "0" for path in folder.glob("*/checkpoints/newest.txt"))


@pytest.mark.slow
def test_a_study_runs_as_jobs_of_slurm_and_a_second_start_submits_nothing(
    slurm: Cluster, harness: Harness, study_file: Path, tmp_path: Path
) -> None:
    before = slurm.jobs()
    done = harness("study", str(study_file), "--seeds", "0", "--jobs", "2", *ON_SLURM)
    assert done.returncode == 0, done.stderr
    found = runs(tmp_path / "runs" / "small")
    assert [run["status"] for run in found] == ["finished"] * 2
    mine = slurm.jobs()[len(before) :]
    assert [state for _, _, state in mine] == ["COMPLETED"] * 2
    assert sorted(name.rsplit(".", 1)[0] for _, name, _ in mine) == sorted(
        run["study"]["job"] for run in found
    )
    again = harness("study", str(study_file), "--seeds", "0", *ON_SLURM)
    assert again.returncode == 0 and len(slurm.jobs()) == len(before) + 2, again.stderr


@pytest.mark.slow
def test_a_killed_study_finds_its_job_and_never_submits_it_twice(
    slurm: Cluster,
    harness: Harness,
    start: Start,
    one_run: tuple[str, ...],
    gate: Path,
    tmp_path: Path,
) -> None:
    folder, before = tmp_path / "runs" / "small", len(slurm.jobs())
    study = start(*one_run)
    wait_until(lambda: held(folder), "the run is at its gate")
    study.kill()
    study.communicate()
    ((number, name, state),) = slurm.jobs()[before:]
    assert state == "RUNNING"
    script = slurm.ask("scontrol", "write", "batch_script", number, "-")
    commands = " ".join(
        " ".join(one.info["cmdline"] or ()) for one in psutil.process_iter(["cmdline"])
    )
    assert "harness train" in script and str(folder) in commands and SECRET not in script + commands
    # As if it had been killed right after sbatch: nothing is noted of the job.
    state_file = folder / "study.json"
    known = json.loads(state_file.read_text())
    for job in known["jobs"]:
        job |= {"state": "planned", "run": None, "launcher": None}
    state_file.write_text(json.dumps(known))
    planned = json.loads(harness(*one_run, "--dry-run", "--json").stdout)
    assert [(job["action"], job["why"].split(",")[0]) for job in planned["jobs"]] == [
        ("wait", f"still running as Slurm job {number}")
    ]
    again = start(*one_run)
    wait_until(
        lambda: json.loads(state_file.read_text())["jobs"][0]["launcher"] == "slurm",
        "it is taken over",
    )
    gate.touch()
    commands, errors = again.communicate(timeout=60)
    assert again.returncode == 0, errors
    assert "by an earlier launch" in commands
    assert [(name, state) for _, name, state in slurm.jobs()[before:]] == [(name, "COMPLETED")]
    (run,) = runs(folder)
    assert run["status"] == "finished" and len(run["launches"]) == 1


@pytest.mark.slow
def test_ctrl_c_leaves_jobs_and_says_how_they_are_ended(
    slurm: Cluster,
    harness: Harness,
    start: Start,
    one_run: tuple[str, ...],
    gate: Path,
    tmp_path: Path,
) -> None:
    folder, before = tmp_path / "runs" / "small", len(slurm.jobs())
    study = start(*one_run)
    wait_until(lambda: held(folder), "the run is at its gate")
    study.send_signal(signal.SIGINT)
    _, errors = study.communicate(timeout=30)
    ((number, _, state),) = slurm.jobs()[before:]
    assert study.returncode == 130 and state == "RUNNING"
    assert (
        f"Slurm job {number}, running {slurm.host} continues (end it: scancel {number}). Resume: "
        "harness" in errors
    )
    # The study forgets no job of Slurm's, whatever it is started with.
    local = [one for one in one_run if one not in ON_SLURM]
    assert f"still running as Slurm job {number}" in harness(*local, "--dry-run", "--json").stdout
    gate.touch()
    done = harness(*one_run)
    assert done.returncode == 0 and len(slurm.jobs()) == before + 1, done.stderr


@pytest.mark.slow
def test_a_study_of_another_launcher_asks_for_all_jobs_at_once(
    slurm: Cluster,
    harness: Harness,
    start: Start,
    study_file: Path,
    gate: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = ("study", str(study_file), "--seeds", "0", "--jobs", "2", "--set", f"verl.gate={gate}")
    study = start(*asked, *ON_SLURM)
    newest = (tmp_path / "runs" / "small").glob
    wait_until(
        lambda: sum(path.read_text() == "0" for path in newest("*/checkpoints/newest.txt")) == 2,
        "both wait",
    )
    study.kill()
    study.communicate()
    tools, calls, real = tmp_path / "tools", tmp_path / "calls", shutil.which("squeue")
    tools.mkdir()
    (tools / "squeue").write_text(f'#!/bin/sh\necho called >> "{calls}"\nexec {real} "$@"\n')
    (tools / "squeue").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    planned = json.loads(harness(*asked, "--dry-run", "--json").stdout)
    assert [job["action"] for job in planned["jobs"]] == ["wait", "wait"]
    assert calls.read_text() == "called\n"


def cancelled(slurm: Cluster, number: str) -> None:
    slurm.ask("scancel", number)


def timed_out(slurm: Cluster, number: str) -> None:
    slurm.ask("scontrol", "update", f"JobId={number}", "TimeLimit=1")  # minutes, the least there is


def lost_its_node(slurm: Cluster, number: str) -> None:
    slurm.kill_node()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("what", "message"),
    [
        (cancelled, "was cancelled (CANCELLED)"),
        (timed_out, "reached its time limit (TIMEOUT, TimeLimit)"),
        (lost_its_node, "lost its node (NODE_FAIL, NodeDown)"),
    ],
)
def test_what_slurm_ends_is_told_in_a_line_and_goes_on_when_started_again(
    what: Callable[[Cluster, str], None],
    message: str,
    slurm: Cluster,
    harness: Harness,
    start: Start,
    one_run: tuple[str, ...],
    gate: Path,
    tmp_path: Path,
) -> None:
    folder, before = tmp_path / "runs" / "small", len(slurm.jobs())
    study = start(*one_run)
    wait_until(lambda: held(folder), "the run is at its gate")
    ((number, _, _),) = slurm.jobs()[before:]
    what(slurm, number)
    _, errors = study.communicate(timeout=180)
    if what is lost_its_node:
        slurm.start_node()
    assert study.returncode == 1
    line = f"Slurm job {number} {message}; log: runs/small/logs/one-turn"
    assert line in errors and line in errors.splitlines()[-1], errors
    gate.touch()
    done = harness(*one_run)
    assert done.returncode == 0, done.stderr
    (run,) = runs(folder)
    assert run["status"] == "finished" and len(run["launches"]) == 2
    assert [state for _, _, state in slurm.jobs()[before:]][-1] == "COMPLETED"


def test_what_slurm_would_refuse_is_refused_before_anything_runs(
    slurm: Cluster, here: Harness, study_file: Path, tmp_path: Path
) -> None:
    before = slurm.jobs()
    for options, message in (
        (("--launch", "partition=nowhere"), "sbatch finds no place for two-turns"),
        (
            ("--launch", "cpus=64"),
            "(allocation failure: Requested node configuration is not available)",
        ),
    ):
        refused = here("study", str(study_file), *ON_SLURM, *options)
        assert (
            refused.returncode == 2
            and message in refused.stderr
            and refused.stderr.count("\n") == 1
        ), refused.stderr
    assert slurm.jobs() == before and not runs(tmp_path / "runs" / "small")


@pytest.mark.slow
def test_options_stand_in_the_study_file_too(
    slurm: Cluster, harness: Harness, study_file: Path
) -> None:
    options = '{partition: main, time: "0:05:00", cpus: 2, mem: 100M, sbatch: --comment=mine}'
    study_file.write_text(study_file.read_text() + f"launcher:\n  slurm: {options}\n")
    before = len(slurm.jobs())
    done = harness(
        "study", str(study_file), "--seeds", "0", "--only", "max_turns=one turn", *ON_SLURM
    )
    assert done.returncode == 0, done.stderr
    ((number, _, _),) = slurm.jobs()[before:]
    shown = slurm.ask("scontrol", "show", "job", number)
    for one in (
        "Partition=main",
        "TimeLimit=00:05:00",
        "CPUs/Task=2",
        "MinMemoryNode=100M",
        "Comment=mine",
    ):
        assert one in shown, shown

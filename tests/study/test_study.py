"""`harness study` end to end: plan, run, kill, go on, fail, and the order that favours no arm."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.compare.comparison import compare
from harness.compare.formats import render
from harness.compare.runs import select
from harness.errors import ConfigError
from harness.study.plan import jobs_of, read_study

Harness = Callable[..., "subprocess.CompletedProcess[str]"]


def records(folder: Path) -> list[dict[str, object]]:
    return [json.loads(path.read_text()) for path in sorted(folder.glob("*/run.json"))]


def wait_until(condition: Callable[[], bool], timeout_s: float = 30) -> None:
    ends = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < ends, "it never happened"
        time.sleep(0.05)


def test_a_study_runs_once_and_a_second_start_repeats_nothing(
    harness: Harness, study_file: Path, tmp_path: Path
) -> None:
    done = harness("study", str(study_file), "--seeds", "0")
    assert done.returncode == 0, done.stderr
    found = records(tmp_path / "runs" / "small")
    assert [(record["status"], record["config"]["max_turns"]) for record in found] == [("finished", 2), ("finished", 1)]  # type: ignore[index]
    again = harness("study", str(study_file), "--dry-run", "--json")
    plan = json.loads(again.stdout)
    actions = {(job["arm"], job["seed"]): job["action"] for job in plan["jobs"]}
    assert actions == {
        ("two turns", 0): "skip",
        ("one turn", 0): "skip",
        ("two turns", 1): "run",
        ("one turn", 1): "run",
    }
    assert plan["estimate_s"] > 0 and list(plan["differences"]) == ["max_turns"]
    assert records(tmp_path / "runs" / "small") == found
    data = compare(select([study_file], tmp_path / "runs"))
    assert data["margin"] == 0.2 and [(one["key"], one["why"]) for one in data["exceptions"]] == [
        ("max_turns", "varied")
    ]


def test_a_killed_study_goes_on_where_it_was_and_does_no_run_twice(
    harness: Harness, start: Callable[..., subprocess.Popen[str]], study_file: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "runs" / "small"
    slow = ("study", str(study_file), "--seeds", "0", "--only", "max_turns=one turn", "--set", "verl.sleep_s=0.8")
    process = start(*slow)
    wait_until(lambda: any((path.parent / "checkpoints").glob("*.txt") for path in folder.glob("*/run.json")))
    process.kill()  # no chance to clean up: the training goes on alone
    process.communicate()
    done = harness(*slow)
    assert done.returncode == 0, done.stderr
    found = records(folder)
    assert [record["status"] for record in found] == ["finished"]
    assert len(found[0]["launches"]) == 1  # type: ignore[arg-type]


def test_ctrl_c_ends_promptly_and_the_next_start_resumes(
    harness: Harness, start: Callable[..., subprocess.Popen[str]], study_file: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "runs" / "small"
    process = start("study", str(study_file), "--only", "max_turns=two turns", "--set", "verl.sleep_s=0.7")
    wait_until(lambda: any((path.parent / "checkpoints").glob("*.txt") for path in folder.glob("*/run.json")))
    began = time.monotonic()
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=20)
    assert process.returncode == 130 and time.monotonic() - began < 10
    assert [record["status"] for record in records(folder)] == ["interrupted"]
    done = harness(
        "study", str(study_file), "--only", "max_turns=two turns", "--seeds", "0", "--set", "verl.sleep_s=0.7"
    )
    assert done.returncode == 0, done.stderr
    (record,) = records(folder)
    assert record["status"] == "finished" and len(record["launches"]) == 2  # type: ignore[arg-type]


def test_a_failed_run_does_not_stop_the_others_and_is_told(harness: Harness, study_file: Path, tmp_path: Path) -> None:
    arguments = ("study", str(study_file), "--set", "verl.fail_seed=0", "--only", "max_turns=two turns")
    done = harness(*arguments)
    assert done.returncode == 1
    assert "1 of 2 runs failed" in done.stderr and "fell off the bus" in done.stderr
    assert [record["status"] for record in records(tmp_path / "runs" / "small")] == ["failed", "finished"]
    text = render(compare(select([tmp_path / "runs" / "small"])), "md")
    assert "fell off the bus" in text and "one seed" in text


def test_two_processes_never_run_one_study(study_file: Path, tmp_path: Path) -> None:
    from harness.errors import UserError
    from harness.study.state import StudyFolder

    study = read_study(study_file)
    first, second = (StudyFolder(tmp_path / "runs" / "small", study, jobs_of(study)) for _ in range(2))
    with first.locked(), pytest.raises(UserError, match="already running"), second.locked():
        pass


def test_arms_take_turns_at_being_first(study_file: Path) -> None:
    study = read_study(study_file)
    study.matrix["seed"] = [0, 1, 2, 3]
    jobs = jobs_of(study)
    assert [job.seed for job in jobs] == [0, 0, 1, 1, 2, 2, 3, 3]
    assert Counter(job.arm for job in jobs[::2]) == {"two turns": 2, "one turn": 2}


@pytest.mark.parametrize("name", ["smoke", "frameworks", "agent_match", "scaffolding", "context_turns", "transfer"])
def test_shipped_studies_resolve_and_vary_only_what_they_say(name: str) -> None:
    from harness.study.plan import differences

    study = read_study(Path(name))
    jobs = jobs_of(study)
    said = {key for settings in study.arms.values() for key in settings} | set(study.matrix) - {"seed"}
    assert set(differences(jobs)) == said
    by_seed: dict[int, set[str]] = {}
    for job in jobs:
        by_seed.setdefault(job.seed, set()).add(job.arm)
    assert len({frozenset(arms) for arms in by_seed.values()}) == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("matirx: {}", "did you mean 'matrix'"),
        ("matrix: {plugin: []}", "has no values"),
        ("matrix: {train.stepps: [1]}", "did you mean 'train.steps'"),
        ("margin: 5", "less than 1"),
        ("- a", "must hold a mapping"),
        ("matrix: {max_turns: [1, 1]}", "the same run twice"),
    ],
)
def test_mistakes_in_a_study_file_are_told_in_a_line(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "wrong.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message) as caught:
        jobs_of(read_study(path))
    assert "\n" not in str(caught.value)


def test_agents_without_certificate_are_refused_before_the_time_is_spent(
    study_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = study_file.read_text().replace("train.trainer: synthetic, ", "")
    study_file.write_text(
        text.replace("max_turns: {two turns: 2, one turn: 1}", "plugin: [reference_sql, langgraph_sql]")
    )
    monkeypatch.setenv("HARNESS_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    from harness.cli.study import study
    from harness.errors import UserError

    with pytest.raises(UserError, match="no parity certificate for langgraph_sql"):
        study(study_file, runs_dir=tmp_path / "runs")
    assert not (tmp_path / "runs").exists()

"""Studies of an agent in a file go on after their project has moved."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness.cli.scaffold import write_file
from harness.compare.comparison import compare
from harness.compare.selection import select
from harness.parity.certificate import fingerprint
from harness.runs.folder import RunFolder
from harness.util.formatting import agent_label
from harness_study import moved
from harness_study.plan import Job, jobs_of, read_study
from harness_study.state import Step, StudyFolder

Harness = Callable[..., "subprocess.CompletedProcess[str]"]
RECORD = Path(__file__).resolve().parents[2] / "results" / "cpu" / "seed0" / "run.json"
AGENTS = "{here: ./my_agent.py:MyAgent, below: ./below/my_agent.py:MyAgent}"
STUDY = f"""
name: small
preset: cpu
set: {{agent_match: write}}
matrix:
  agent: {AGENTS}
  seed: [0]
evaluate: [./my_agent.py:MyAgent]
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a study of two equal agents, and a finished run of each of its jobs."""
    folder = tmp_path / "old"
    (folder / "below").mkdir(parents=True)
    write_file("my_agent", folder)
    write_file("my_agent", folder / "below")
    (folder / "small.yaml").write_text(STUDY)
    monkeypatch.chdir(folder)
    made: dict[str, str] = {}
    for job in jobs_of(read_study(Path("small.yaml"))):
        run = RunFolder.create(Path("runs"), job.key)
        made[job.key] = run.id
        agent = job.config.agent
        record: Any = json.loads(RECORD.read_text()) | {
            "id": run.id,
            "kind": job.kind,
            "agent": agent_label(agent),
            "agent_source": fingerprint(agent)["agent_source"],
            "commit": None,
            "config": job.config.dump(),
            "study": {"name": "small", "job": job.key, "runs_at_once": 1},
        }
        if job.parent:
            record["parent"] = {"run": made[job.parent], "step": 20}
        run.write(record)
    assert {step.action for step in steps()} == {"skip"}
    return folder


def steps(*, any_code: bool = False) -> list[Step]:
    """The next steps of the study of the project in the working directory."""
    moved.source_of.cache_clear()
    study = read_study(Path("small.yaml"))
    jobs = jobs_of(study)
    return StudyFolder(Path("runs"), study, jobs).next_steps(jobs, any_code=any_code)


def run_of(job: Job) -> RunFolder:
    """The run that was made for a job."""
    (path,) = Path("runs").glob(f"*{job.key}*")
    return RunFolder(path)


@pytest.fixture
def elsewhere(project: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The project after it has moved."""
    there = project.with_name("new")
    project.rename(there)
    monkeypatch.chdir(there)
    return there


def test_finished_runs_of_a_moved_project_are_kept(elsewhere: Path) -> None:
    found = steps()
    assert {step.job.kind for step in found} == {"train", "eval"}
    for step in found:
        assert step.action == "skip" and step.folder == run_of(step.job).path.absolute()


def test_each_of_two_equal_agents_keeps_its_own_run(elsewhere: Path) -> None:
    """Studies of two copies measure chance: a run of the one is none of the other."""
    (first, *_) = steps()
    run_of(first.job).update(status="failed")
    (again, *others) = [step for step in steps() if step.job.kind == "train"]
    assert (again.action, again.job.key) == ("run", first.job.key)
    assert {step.action for step in others} == {"skip"}


@pytest.mark.parametrize("any_code", [False, True])
def test_an_agent_that_was_edited_at_its_new_path_runs_again(
    elsewhere: Path, any_code: bool
) -> None:
    with (elsewhere / "my_agent.py").open("a") as file:
        file.write("# edited\n")
    actions = {step.job.key: step.action for step in steps(any_code=any_code)}
    assert actions["here-seed0"] == "run" and actions["below-seed0"] == "skip"


@pytest.mark.parametrize(
    "changed",
    [
        {"agent_source": ""},
        {"agent_source": "of-another"},
        {"agent": "my_agent.py:Other"},
        {"study": None},
        {"status": "stopped"},
    ],
)
def test_a_run_without_a_proof_that_it_is_the_job_s_runs_again(
    elsewhere: Path, changed: dict[str, Any]
) -> None:
    (first, *_) = steps()
    run_of(first.job).update(**changed)
    assert steps()[0].action == "run"


def test_another_setting_counts_after_a_move_as_before_it(elsewhere: Path) -> None:
    (first, *_) = steps()
    config = run_of(first.job).read()["config"] | {"max_turns": 7}
    run_of(first.job).update(config=config)
    assert steps()[0].action == "run"


def test_an_edited_file_at_the_old_path_does_not_count(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two checkouts with the runs of one: the job's file decides, not the one that made the run."""
    there = project.with_name("new")
    project.rename(there)
    project.mkdir()
    (project / "my_agent.py").write_text((there / "my_agent.py").read_text() + "# edited\n")
    monkeypatch.chdir(there)
    assert {step.action for step in steps()} == {"skip"}


@pytest.mark.slow
def test_a_study_goes_on_in_a_moved_project_and_compares_all_its_runs(
    harness: Harness, study_file: Path, tmp_path: Path
) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    old.mkdir()
    write_file("my_agent", old)
    text = study_file.read_text().replace("set: {", f"set: {{agent: {old}/my_agent.py:MyAgent, ")
    study_file.write_text(text)
    first = harness("study", str(study_file), "--seeds", "0")
    assert first.returncode == 0, first.stderr
    begun = {path.parent.name for path in (tmp_path / "runs" / "small").glob("*/run.json")}
    old.rename(new)
    study_file.write_text(text.replace(str(old), str(new)))
    done = harness("study", str(study_file))
    assert done.returncode == 0, done.stderr
    runs = {path.parent.name for path in (tmp_path / "runs" / "small").glob("*/run.json")}
    assert begun < runs and (len(begun), len(runs)) == (2, 4)
    found = compare(select([study_file], tmp_path / "runs"))
    assert [arm["seeds"] for arm in found["arms"]] == [[0, 1], [0, 1]] and not found["missing"]

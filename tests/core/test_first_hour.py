"""What commands say in the first hour: nothing misleads, and each message says what to do next."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.api.evaluating import Evaluation, Wanted
from harness.cli.common import progress_console
from harness.cli.serve import to_serve
from harness.runs.folder import RunFolder
from harness.util.formatting import about, difficulty_order

Command = Callable[..., subprocess.CompletedProcess[str]]


def test_tasks_show_describes_a_task_set_also_before_it_has_its_questions(
    command: Command,
) -> None:
    done = command("tasks", "show", "files")
    assert done.returncode == 0, done.stderr
    assert "schema_chars=4000" in done.stdout
    assert "counts: not known yet: task set 'files' needs a file of questions" in done.stdout
    assert "counts: {" in command("tasks", "show", "pocket").stdout


def test_difficulties_go_from_easy_to_hard() -> None:
    names = ["hard", "zebra", "extra", "easy", "all", "medium"]
    expected = ["easy", "medium", "hard", "extra", "all", "zebra"]
    assert sorted(names, key=difficulty_order) == expected


def test_estimates_have_no_more_digits_than_are_known() -> None:
    assert [about(s) for s in (0.2, 3.4, 29.2, 118.0)] == [
        "about 1 s",
        "about 3 s",
        "about 30 s",
        "about 2 min",
    ]


@pytest.fixture
def trained(tmp_path: Path) -> RunFolder:
    """A run of the self-correcting program, with no more of it than a record and a configuration."""
    from harness.config import load_config

    folder = RunFolder.create(tmp_path / "runs", "reference_sql")
    folder.write_config(load_config("cpu", None, [], agent="reference_sql"))
    return folder


@pytest.mark.parametrize("words", [("eval", "RUN"), ("serve", "RUN"), ("dev", "--model", "RUN")])
def test_a_damaged_record_is_refused_by_every_command_that_takes_a_run(
    command: Command, trained: RunFolder, words: tuple[str, ...]
) -> None:
    (trained.path / "run.json").write_text('{"schema_version": 1, "id"')
    arguments = [str(trained.path) if word == "RUN" else word for word in words]
    agent = ["--agent", "reference_sql"] if words[0] != "serve" else []
    done = command(*arguments, *agent)
    assert done.returncode == 2 and done.stderr.count("\n") == 1, done.stderr
    assert "run.json" in done.stderr and "Restore it from a copy" in done.stderr


def test_an_agent_whose_program_the_policy_never_saw_is_remarked_on(
    trained: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = {"agent": "reference_sql", "identity": {"program": "self_correcting_sql"}}
    monkeypatch.setattr(RunFolder, "read", lambda self: record)
    for agent, remarked in (("reference_tools", True), ("reference_sql", False)):
        (trained.path / "run.json").touch()
        asked: Evaluation = Wanted(run=trained.path, agent=agent).asked()
        remark = asked._unseen_program()
        assert ("never saw prompts of 'tool_loop'" in remark) is remarked, remark


def test_a_study_stands_for_its_best_finished_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    study = tmp_path / "runs" / "small"
    jobs = []
    values = {"one": 0.4, "two": 0.7, "three": 0.9, "four": None}
    for number, (name, value) in enumerate(values.items()):
        folder = RunFolder.create(study, name)
        status = "failed" if name == "three" else "finished"
        record = {"status": status, "result": {"val_accuracy_final": value}}
        (folder.path / "run.json").write_text(json.dumps(record))
        jobs.append({"key": name, "arm": name, "seed": number, "run": folder.path.name})
    (study / "study.json").write_text(
        json.dumps({"schema_version": 1, "name": "small", "jobs": jobs})
    )
    monkeypatch.setattr(
        RunFolder, "read", lambda self: json.loads((self.path / "run.json").read_text())
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    progress_console.cache_clear()
    for name in ("small", str(study)):
        found = to_serve(name)
        assert isinstance(found, RunFolder) and found.path.name.split("-")[2] == "two"
    assert (
        "serving the best of 2 finished trainings by validation (70.0 %" in capsys.readouterr().err
    )
    by_id = to_serve(f"small/{jobs[0]['run']}")
    assert isinstance(by_id, RunFolder) and by_id.path.name == jobs[0]["run"]
    assert to_serve("pocket-sql") == "pocket-sql"

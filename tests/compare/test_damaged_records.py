"""Records with values that no run has: named in one line, wherever they are read."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness.runs.reading import read_run

from .synthetic import write_run

Command = Callable[..., subprocess.CompletedProcess[str]]
DAMAGES: list[tuple[str, Any, str]] = [
    ("launches", [], "its launches are empty"),
    ("config", {}, "its config.agent is missing"),
    ("config.agent", None, "its config.agent is missing"),
    ("config.policy", None, "its config.policy is missing"),
    ("config.policy", {}, "its config.policy.path is missing"),
    ("config.task", [], "its config.task is missing"),
    ("config.rollout", "4", "its config.rollout is missing"),
    ("config.rollout", {}, "its config.rollout.group_size is missing"),
    ("config.rollout.group_size", 0, "its config.rollout.group_size is 0, not a number above 0"),
    ("config.train", None, "its config.train is missing"),
    ("config.train", {}, "its config.train.batch_size is missing"),
    ("config.train.batch_size", 0, "its config.train.batch_size is 0, not a number above 0"),
    ("config.train.mini_batch_size", -1, "its config.train.mini_batch_size is -1"),
    ("config.gpus", "two", "its config.gpus is missing or of the wrong kind"),
    ("result.val_curve", {"a": 1.0}, "its result.val_curve has the key 'a', not a step"),
    ("seed", 10**30, "its seed is 1000000000000000000000000000000, not a number from 0"),
    ("seed", -1, "its seed is -1, not a number from 0 to 4294967295"),
]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_run(tmp_path_factory.mktemp("one"), val_limit=4, steps=2).path


@pytest.fixture
def root(whole: Path, tmp_path: Path) -> Path:
    """A folder of runs with a whole one, and one of the same content that a test may damage."""
    root = tmp_path / "runs"
    bad = root / "20200101-000000-bad"
    bad.mkdir(parents=True)
    (root / whole.name).symlink_to(whole)
    for file in whole.iterdir():
        if file.name != "run.json":
            (bad / file.name).symlink_to(file)
    return root


def damaged(root: Path, whole: Path, place: str, value: Any) -> Path:
    record = json.loads((whole / "run.json").read_text())
    *outer, last = place.split(".")
    inside = record
    for name in outer:
        inside = inside[name]
    inside[last] = value
    file = root / "20200101-000000-bad" / "run.json"
    file.write_text(json.dumps(record))
    return file


def test_an_undamaged_copy_is_read(root: Path, whole: Path) -> None:
    seed = json.loads((whole / "run.json").read_text())["seed"]
    copied = read_run(damaged(root, whole, "seed", seed).parent)
    assert copied.record == read_run(whole).record and copied.val_curve()


@pytest.mark.parametrize(("place", "value", "message"), DAMAGES)
def test_what_no_run_has_is_named_and_leaves_other_runs_alone(
    place: str, value: Any, message: str, root: Path, whole: Path, command: Command
) -> None:
    file = damaged(root, whole, place, value)
    for arguments in (
        ("runs", "show", file.parent),
        ("compare", file.parent),
        ("report", file.parent),
        ("train", "--resume", file.parent),
    ):
        done = command(*arguments)
        assert (done.returncode, done.stderr.count("\n")) == (2, 1), (arguments, done.stderr)
        assert f"{file} is no complete record: {message}" in done.stderr
    listed = command("runs", "list", "--runs-dir", root, "--json")
    assert [row["id"] for row in json.loads(listed.stdout)] == [whole.name]
    assert listed.stderr.count("\n") == 1 and message in listed.stderr


def test_a_damaged_run_does_not_stop_a_study(
    root: Path, whole: Path, command: Command, tmp_path: Path
) -> None:
    file = damaged(root, whole, "config", {})
    study = tmp_path / "small.yaml"
    study.write_text(
        "{name: small, preset: cpu, set: {agent: reference_sql, train.steps: 1}, matrix: {seed: [0]}}"
    )
    done = command("study", study, "--dry-run", "--json", "--runs-dir", root)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["to_run"] == 1
    assert f"left out: {file} is no complete record" in done.stderr

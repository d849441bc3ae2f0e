"""Splits that are reserved for one reading: who may read them, and what a reading leaves behind."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from harness.cli.dev import dev
from harness.config import Config, load_config
from harness.errors import ConfigError, UserError
from harness.plugins import task_set_spec
from harness.runs.folder import RunFolder
from harness.runs.split_readings import FILE, write_down
from harness.testing.fixtures import StartServer
from harness.training.checks import check

ON_TEST = ("task.val_split=test",)


def reserved(*overrides: str) -> Config:
    return load_config("pocket-probe", None, [*ON_TEST, *overrides], agent="reference_sql")


def evaluate(runs: Path, url: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [
        *(
            sys.executable,
            "-m",
            "harness",
            "eval",
            "--plugin",
            "reference_sql",
            "--task",
            "pocket_probe",
        ),
        *(
            "--split",
            "test",
            "--limit",
            "4",
            "--endpoint",
            url,
            "--runs-dir",
            str(runs),
            *arguments,
        ),
    ]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)


def lines(runs: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (runs / FILE).read_text(encoding="utf-8").splitlines()]


@pytest.mark.slow
def test_a_reading_is_asked_for_and_written_down_and_a_second_says_so(
    tmp_path: Path, scripted_server: StartServer
) -> None:
    server = scripted_server(
        lambda _: "```sql\nSELECT 1\n```\nTHE QUERY IS CORRECT.", token_ids=False
    )
    refused = evaluate(tmp_path, server.base_url)
    assert (
        refused.returncode == 2
        and "--read-reserved" in refused.stderr
        and len(refused.stderr.splitlines()) == 1
    )
    assert not list(tmp_path.iterdir()) and not server.requests
    first = evaluate(tmp_path, server.base_url, "--read-reserved")
    assert first.returncode == 0 and "this is the first one" in first.stdout
    second = evaluate(tmp_path, server.base_url, "--read-reserved")
    one, two = lines(tmp_path)
    record = json.loads((tmp_path / str(two["run"]) / "run.json").read_text(encoding="utf-8"))
    assert one["earlier"] == [] and two["earlier"] == [one["run"]] and record["reading"] == two
    assert f"not the first one: {one['run']} read it" in " ".join(second.stdout.split())
    named = ("task_set", "split", "agent", "max_turns")
    assert [one[name] for name in named] == ["pocket_probe", "test", "reference_sql", 3]
    assert (
        one["by"] and str(one["at"]).endswith("Z") and str(one["model"]).startswith("scripted at ")
    )
    folder = RunFolder.open(tmp_path / str(two["run"]))
    again = folder.read()
    assert write_down(folder, again)["earlier"] == [one["run"], two["run"]]
    again["identity"]["max_turns"] = 2  # another comparison
    assert write_down(folder, again)["earlier"] == []


def test_a_damaged_file_of_readings_is_named(tmp_path: Path) -> None:
    (tmp_path / FILE).write_text('{"run": 1}\n')
    record = {"config": reserved().dump(), "agent": "a", "identity": {"model": "m", "max_turns": 3}}
    with pytest.raises(UserError, match=r"readings\.jsonl, line 1 is no reading"):
        write_down(RunFolder.create(tmp_path, "eval"), record)  # type: ignore[arg-type]
    assert (tmp_path / FILE).read_text() == '{"run": 1}\n'


def test_no_training_and_no_dry_run_reads_a_reserved_split() -> None:
    with pytest.raises(
        ConfigError, match=r"task\.val_split: 'test' of 'pocket_probe' is for one reading"
    ):
        check(reserved("device=cpu"))
    with pytest.raises(ConfigError, match=r"task\.train_split: 'test' .* use one of: train, dev"):
        check(
            load_config(
                "pocket-probe", None, ["task.train_split=test", "device=cpu"], agent="reference_sql"
            )
        )
    with pytest.raises(ConfigError, match="for one reading"):
        dev(
            agent="reference_sql",
            endpoint="http://127.0.0.1:9/v1",
            model="m",
            task="pocket_probe",
            split="test",
        )
    check(reserved(), trains=False, reads_reserved=True)
    assert "test" in task_set_spec("pocket_probe").reserved

"""What docs/own-questions.md says is so, command by command, the training included."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pyarrow.parquet
import pytest

from harness.config import Config
from harness.plugins import make_task_set
from harness.records import Task

REPO = Path(__file__).resolve().parents[2]
PAGE = (REPO / "docs" / "own-questions.md").read_text(encoding="utf-8")
CONSOLE = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def commands() -> Iterator[tuple[str, str]]:
    """Every command of the page with what it prints."""
    for block in CONSOLE.findall(PAGE):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, _, output = part.partition("\n")
            yield command, output


def example(folder: Path) -> None:
    (script,) = re.findall(
        r"^```python\n# make_shop\.py\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL
    )
    (folder / "make_shop.py").write_text(script, encoding="utf-8")
    for name in ("python", "harness"):
        module = "" if name == "python" else "-m harness"
        (folder / "bin").mkdir(exist_ok=True)
        (folder / "bin" / name).write_text(
            f'#!/bin/sh\nexec {shlex.quote(sys.executable)} {module} "$@"\n'
        )
        (folder / "bin" / name).chmod(0o755)


def run(command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    paths = [str(REPO), *filter(None, [os.environ.get("PYTHONPATH")])]
    path = f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "PYTHONPATH": os.pathsep.join(paths)}
    return subprocess.run(
        command,
        shell=True,
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.slow
def test_the_commands_of_the_page_print_what_it_says(tmp_path: Path) -> None:
    example(tmp_path)
    seen = 0
    for command, output in commands():
        if command.startswith("harness train"):
            continue
        done = run(command, tmp_path)
        assert done.stdout.replace(str(tmp_path), "FOLDER") == output, (
            command,
            done.stderr[-2000:],
        )
        assert not done.stderr, (command, done.stderr[-2000:])
        seen += 1
    assert seen == 5


@pytest.mark.train
@pytest.mark.timeout(900)
def test_the_training_of_the_page(
    tmp_path: Path, shared: Mapping[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in shared.items():
        monkeypatch.setenv(name, value)
    example(tmp_path)
    assert run("python make_shop.py", tmp_path).returncode == 0
    (train,) = [command for command, _ in commands() if command.startswith("harness train")]
    done = run(train, tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    (file,) = tmp_path.glob("runs/*/run.json")
    record = json.loads(file.read_text())
    assert (record["status"], record["result"]["steps"], record["result"]["data_changed"]) == (
        "finished",
        2,
        [],
    )
    config = Config.model_validate(
        {"task": {"name": "files", "options": {"path": str(tmp_path / "questions.jsonl")}}}
    )
    assert record["identity"]["task_set"] == make_task_set(config).describe()
    rows = pyarrow.parquet.read_table(file.with_name("episodes.parquet")).to_pylist()
    assert len(rows) == 2 * 4 * 4 + 2 * 4 and all(one["reward"] is not None for one in rows)
    val: list[Task] = list(make_task_set(config).load("val"))
    assert {one["task_id"] for one in rows if one["phase"] == "val"} == {task.id for task in val}

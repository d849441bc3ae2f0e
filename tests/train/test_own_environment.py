"""An agent in one file gets an environment of its own, with what only the file needs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from harness.cli.scaffold import write_file

pytestmark = [pytest.mark.train, pytest.mark.timeout(900)]

ELSEWHERE = "toolz"
"""A small package that nothing here needs."""


def harness(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "harness", *arguments]
    variables = {**os.environ, "HARNESS_CACHE_DIR": str(folder / "cache")}
    return subprocess.run(
        command, capture_output=True, text=True, cwd=folder, env=variables, timeout=600
    )


def test_a_file_s_own_environment_has_what_only_the_file_needs(uv: str, tmp_path: Path) -> None:
    assert find_spec(ELSEWHERE) is None, "choose another package"
    file = write_file("my_agent", tmp_path)
    source = file.read_text(encoding="utf-8")
    file.write_text(f"import {ELSEWHERE}\n{source}", encoding="utf-8")
    agent = "./my_agent.py:MyAgent"
    measure = ("eval", "--agent", agent, "--model", "pocket-sql", "--limit", "4")

    before = harness(tmp_path, *measure)
    assert before.returncode != 0 and ELSEWHERE in before.stderr

    made = harness(tmp_path, "plugins", "sync", agent, "--with", ELSEWHERE)
    assert made.returncode == 0, made.stderr[-3000:]
    after = harness(tmp_path, *measure)
    assert after.returncode == 0, after.stderr[-3000:]
    finished = [json.loads(path.read_text()) for path in tmp_path.glob("runs/*/run.json")]
    (record,) = [one for one in finished if one["status"] == "finished"]
    assert record["result"]["outcomes"] == {"ok": 4}

    assert harness(tmp_path, "plugins", "sync", agent, "--remove").returncode == 0
    assert harness(tmp_path, *measure).returncode != 0

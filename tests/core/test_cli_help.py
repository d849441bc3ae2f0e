"""Help at the width of an old terminal, and the interpreter that `make` takes."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from typer.testing import CliRunner

from harness.cli import app

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("command", ["train", "eval", "runner"])
def test_help_of_80_columns_cuts_no_option(command: str) -> None:
    shown = CliRunner(env={"COLUMNS": "80"}).invoke(app, [command, "--help"])
    assert "--store" in shown.output and "…" not in shown.output


@pytest.mark.skipif(shutil.which("make") is None, reason="no make")
def test_make_refuses_a_named_interpreter_that_it_would_replace(tmp_path: Path) -> None:
    old = tmp_path / "python3.9"
    old.write_text("#!/bin/sh\necho 3.9\n")
    old.chmod(0o755)
    for named, message in ((old, "is Python 3.9"), (tmp_path / "none", "no Python that starts")):
        command = ["make", "-n", "train", f"PYTHON={named}"]
        environment = {**os.environ, "MAKEFLAGS": ""}
        done = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 2 and message in done.stderr

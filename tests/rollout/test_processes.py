"""Processes end with their parent, also with one that ended before they could ask for it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from harness.rollout.processes import PARENT

CHILD = """
import os, sys, time
from pathlib import Path
while Path(sys.argv[1]).exists():
    time.sleep(0.05)
from harness.rollout.processes import die_with_parent
die_with_parent()
Path(sys.argv[2]).write_text(os.environ.get("HARNESS_PARENT", "none"))
"""
RUN = """
import os, subprocess, sys
child = subprocess.Popen(
    [sys.executable, "-c", *sys.argv[1:]],
    env={**os.environ, "HARNESS_PARENT": str(os.getpid())},
    stdout=subprocess.DEVNULL,
)
print(child.pid, flush=True)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="a signal at the parent's death is Linux's")
@pytest.mark.parametrize("ended", [True, False])
def test_a_child_notices_a_parent_that_ended_before_it_asked(ended: bool, tmp_path: Path) -> None:
    assert PARENT == "HARNESS_PARENT"
    waits, lives = tmp_path / "waits", tmp_path / "lives"
    waits.touch()
    command = [CHILD, str(waits), str(lives)]
    if ended:
        run = subprocess.run(
            [sys.executable, "-c", RUN, *command], stdout=subprocess.PIPE, check=True
        )
        child = int(run.stdout)
        waits.unlink()
        deadline = time.monotonic() + 60
        while (
            Path(f"/proc/{child}/cmdline").exists() and Path(f"/proc/{child}/cmdline").read_bytes()
        ):
            assert time.monotonic() < deadline, "the child outlives its parent"
            time.sleep(0.1)
        assert not lives.exists()
    else:
        waits.unlink()
        variables = {**os.environ, PARENT: str(os.getpid())}
        subprocess.run([sys.executable, "-c", *command], env=variables, check=True)
        assert lives.read_text() == "none", "its own children have another parent"

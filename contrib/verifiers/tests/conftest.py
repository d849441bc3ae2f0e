"""An environment with verifiers and three of its stock tasksets, made once."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from harness.errors import find_uv
from harness_verifiers.process import VARIABLE, VERIFIERS

TASKSETS = Path(__file__).with_name("tasksets")


@pytest.fixture(scope="session")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter that HARNESS_VERIFIERS_PYTHON names, or one that uv makes, once for all processes that test."""
    if named := os.environ.get(VARIABLE):
        return Path(named)
    root = tmp_path_factory.getbasetemp()
    folder = (root.parent if "PYTEST_XDIST_WORKER" in os.environ else root) / "verifiers"
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "made").exists():
            _make(folder)
            (folder / "made").touch()
    return folder / "bin" / "python"


def _make(folder: Path) -> None:
    packages = [
        VERIFIERS,
        "datasets==5.2.0",
        *(str(TASKSETS / name) for name in ("glossary", "scratchpad", "reverse_text")),
    ]
    uv = find_uv() or pytest.skip("uv is not here, which makes the environment of verifiers")
    for words in (
        ["venv", "--clear", "--python", sys.executable, str(folder)],
        ["pip", "install", "--python", str(folder), *packages],
    ):
        done = subprocess.run([uv, *words], capture_output=True, text=True)
        if done.returncode:
            pytest.skip(
                f"the environment of verifiers cannot be made: {done.stderr.strip()[-300:]}"
            )


@pytest.fixture(scope="session")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data set for `reverse_text`, in the place of the one that it downloads."""
    folder = tmp_path_factory.mktemp("texts")
    rows = (
        "a small gray cat",
        "seven ships sail",
        "rain on the roof",
        "the last train",
        "noon",
        "a door, ajar",
    )
    (folder / "train.jsonl").write_text("".join(json.dumps({"prompt": row}) + "\n" for row in rows))
    return folder

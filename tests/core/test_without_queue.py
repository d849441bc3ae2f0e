"""An installation without the queue of rollouts, and so without agentlightning."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[2]
WITHOUT = """
import sys
from importlib import metadata

sys.modules["agentlightning"] = None
found = metadata.entry_points


def others(**wanted):
    points = [one for one in found(**wanted) if one.value != "harness_agentlightning_queue"]
    return metadata.EntryPoints(points)


metadata.entry_points = others
from harness.__main__ import main

main()
"""
"""Calls `harness` where agentlightning cannot be imported and its plugin is not installed."""


def without_queue(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", WITHOUT, *words],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "COLUMNS": "300", "HF_HUB_OFFLINE": "1"},
    )


def test_the_public_api_imports_without_agentlightning() -> None:
    code = "import sys; sys.modules['agentlightning'] = None; from harness import *"
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True)


@pytest.mark.parametrize(
    ("words", "printed"),
    [
        ("--help", "compare"),
        ("plugins", "reference_sql"),
        ("data list", "spider"),
        ("policy list", "pocket-sql"),
        ("compare results/cpu/seed0 results/cpu/seed1", "accuracy"),
        ("doctor", "To make rollouts: "),
    ],
)
def test_what_makes_no_rollouts_works(
    words: str, printed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(REPO)
    done = without_queue(*words.split())
    assert done.returncode == 0, done.stdout + done.stderr
    assert printed in done.stdout


@pytest.mark.parametrize(
    "words",
    [
        "train --agent reference_sql --preset cpu",
        "eval --agent reference_sql --model pocket-sql",
        "dev --agent reference_sql --model pocket-sql",
    ],
)
def test_what_makes_rollouts_names_the_plugin_in_one_line(
    words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = without_queue(*words.split())
    assert done.returncode == 2, done.stdout + done.stderr
    (line,) = done.stderr.splitlines()
    assert line.startswith(
        "harness: rollouts need the plugin harness-agentlightning-queue. Install it: `"
    )
    assert not list(tmp_path.iterdir())

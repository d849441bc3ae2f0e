"""What installing needs says the same everywhere."""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

import pytest

import harness
from harness.errors import how_to_install

REPO = Path(__file__).parents[2]
OVERRIDES = REPO / "harness" / "overrides.txt"


def test_overrides_are_the_same_everywhere() -> None:
    project = tomllib.loads((REPO / "pyproject.toml").read_text(encoding="utf-8"))
    lines = [line for line in OVERRIDES.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    assert lines == project["tool"]["uv"]["override-dependencies"]
    shown = "printf '" + "".join(f"{line}\\n" for line in lines) + "'"
    for page in ("README.md", "docs/installing.md"):
        assert shown in (REPO / page).read_text(encoding="utf-8"), page


def test_the_distribution_has_one_name() -> None:
    assert (
        tomllib.loads((REPO / "pyproject.toml").read_text(encoding="utf-8"))["project"]["name"] == harness.DISTRIBUTION
    )
    for file in (*REPO.glob("plugins/*/pyproject.toml"), *REPO.glob("examples/*/pyproject.toml")):
        needs = tomllib.loads(file.read_text(encoding="utf-8"))["project"]["dependencies"]
        assert any(re.fullmatch(rf"{harness.DISTRIBUTION}(\[\w+\])?", one) for one in needs), file


def test_plugins_carry_the_licence_itself() -> None:
    # A link that leaves the source distribution is refused where a wheel is built from it.
    for folder in (file.parent for file in REPO.glob("plugins/*/pyproject.toml")):
        own = folder / "LICENSE"
        assert not own.is_symlink() and own.read_bytes() == (REPO / "LICENSE").read_bytes(), folder


def test_an_extra_is_added_as_harness_was_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert how_to_install("gpu") == f"`uv sync --inexact --extra gpu` in {REPO}"
    monkeypatch.setattr("harness.errors.__file__", str(tmp_path / "harness" / "errors.py"))
    command = f"uv pip install --python {sys.executable} --overrides {REPO / 'harness' / 'overrides.txt'}"
    assert how_to_install("cpu") == f"`{command} 'agent-rl-harness[cpu]'` (or gpu)"

"""What installing needs says the same everywhere."""

from __future__ import annotations

import json
import re
import sys
import tomllib
from pathlib import Path

import pytest

import harness
from harness.errors import how_to_install, installed_from, with_overrides

REPO = Path(__file__).parents[2]
OVERRIDES = REPO / "harness" / "overrides.txt"


def test_overrides_are_the_same_everywhere() -> None:
    project = tomllib.loads((REPO / "pyproject.toml").read_text(encoding="utf-8"))
    lines = [
        line
        for line in OVERRIDES.read_text(encoding="utf-8").splitlines()
        if not line.startswith("#")
    ]
    assert lines == project["tool"]["uv"]["override-dependencies"]
    shown = "printf '" + "".join(f"{line}\\n" for line in lines) + "'"
    assert shown in (REPO / "docs" / "installing.md").read_text(encoding="utf-8")


def test_the_distribution_has_one_name() -> None:
    assert (
        tomllib.loads((REPO / "pyproject.toml").read_text(encoding="utf-8"))["project"]["name"]
        == harness.DISTRIBUTION
    )
    folders = ("plugins", "contrib", "examples")
    for file in (file for name in folders for file in REPO.glob(f"{name}/*/pyproject.toml")):
        needs = tomllib.loads(file.read_text(encoding="utf-8"))["project"]["dependencies"]
        assert any(re.fullmatch(rf"{harness.DISTRIBUTION}(\[\w+\])?", one) for one in needs), file


def test_plugins_carry_the_licence_itself() -> None:
    # A link that leaves the source distribution is refused where a wheel is built from it.
    files = (*REPO.glob("plugins/*/pyproject.toml"), *REPO.glob("contrib/*/pyproject.toml"))
    for folder in (file.parent for file in files):
        own = folder / "LICENSE"
        assert not own.is_symlink() and own.read_bytes() == (REPO / "LICENSE").read_bytes(), folder


def test_an_extra_is_added_as_harness_was_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("harness.errors.find_uv", lambda: "/there/uv")
    monkeypatch.setattr(sys, "prefix", str(REPO / ".venv"))
    assert how_to_install("gpu") == f"`/there/uv sync --inexact --extra gpu` in {REPO}"
    command = f"/there/uv pip install --python {sys.executable} --overrides {REPO / 'harness' / 'overrides.txt'}"
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    assert how_to_install("gpu") == f"`{command} -e '{REPO}[gpu]'`"
    monkeypatch.setattr("harness.errors.__file__", str(tmp_path / "harness" / "errors.py"))
    wheel = tmp_path / "agent_rl_harness-0.1.0-py3-none-any.whl"
    wheel.touch()
    monkeypatch.setattr("harness.errors.installed_from", lambda package: wheel)
    assert how_to_install("cpu") == (
        f"`{command} --find-links {tmp_path} 'agent-rl-harness[cpu] @ {wheel.as_uri()}'` (or gpu)"
    )
    monkeypatch.setattr("harness.errors.installed_from", lambda package: None)
    assert how_to_install("gpu").startswith(
        f"`{command} --find-links FOLDER 'agent-rl-harness[gpu]'`"
    )


def test_what_a_distribution_was_installed_from_is_found_while_it_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel, about = tmp_path / "a wheel.whl", tmp_path / "planted-1.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: planted\nVersion: 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert installed_from("planted") is None
    (about / "direct_url.json").write_text(json.dumps({"url": wheel.as_uri(), "archive_info": {}}))
    assert installed_from("planted") is None
    wheel.touch()
    assert installed_from("planted") == wheel


def test_uv_is_called_as_it_is_there_and_installed_first_where_it_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("harness.errors.__file__", str(tmp_path / "harness" / "errors.py"))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "bin" / "python"))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    python = sys.executable
    assert with_overrides().startswith(
        f"{python} -m pip install uv && {python} -m uv pip install --python {python} "
    )
    (tmp_path / ".uv" / "bin").mkdir(parents=True)
    (tmp_path / ".uv" / "bin" / "uv").touch()
    assert with_overrides().startswith(f"{tmp_path}/.uv/bin/uv pip install ")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "uv").touch(0o755)
    assert with_overrides().startswith("uv pip install ")
    monkeypatch.setenv("PATH", "")
    assert with_overrides().startswith(f"{tmp_path}/bin/uv pip install ")


def test_pages_say_that_no_index_has_it() -> None:
    for page in ("README.md", "docs/installing.md"):
        text = " ".join((REPO / page).read_text(encoding="utf-8").split())
        assert "No package index has it" in text or "no package index has it" in text
        assert not re.search(r"pip install (harness-|agent-rl-harness)", text), page


def test_uv_is_brought_before_it_is_called() -> None:
    lines = (REPO / "docs" / "installing.md").read_text(encoding="utf-8").splitlines()
    called = [number for number, line in enumerate(lines) if re.match(r" *uv ", line)]
    assert called and all("pip install uv" in lines[number - 1] for number in called)
    built = [number for number, line in enumerate(lines) if ".uv/bin/uv build" in line]
    assert built and all("make .uv/bin/uv" in lines[number - 1] for number in built)

"""The built wheels install without a checkout, as docs/installing.md says."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
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


@pytest.mark.train
@pytest.mark.timeout(1200)
def test_wheels_install_into_a_fresh_environment_and_work(uv: str, tmp_path: Path) -> None:
    outside = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}

    def call(*command: str, cwd: Path = tmp_path, **more: str) -> str:
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=outside | more, cwd=cwd)
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
        return done.stdout

    dist = tmp_path / "dist"
    call(uv, "build", "--quiet", "--all-packages", "--out-dir", str(dist), cwd=REPO)
    for one in dist.glob("*.whl"):
        assert any(name.endswith("licenses/LICENSE") for name in zipfile.ZipFile(one).namelist()), one.name
    (wheel,) = dist.glob("agent_rl_harness-*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    info = wheel.name.removesuffix("-py3-none-any.whl") + ".dist-info"
    assert wheel.name.split("-")[1] == harness.__version__
    assert {"harness/py.typed", "harness/overrides.txt", f"{info}/licenses/LICENSE"} <= set(names)
    (source,) = dist.glob("agent_rl_harness-*.tar.gz")
    with tarfile.open(source) as sources:
        packed = sources.getnames()
    assert {name for name in names if name.startswith("harness/") and "/configs/" not in name} <= {
        name.partition("/")[2] for name in packed
    }

    frozen = ("--frozen", "--all-extras", "--no-dev", "--no-hashes", "--no-emit-workspace", "--quiet")
    constraints = tmp_path / "constraints.txt"
    call(uv, "export", *frozen, "--output-file", str(constraints), cwd=REPO)
    python = str(tmp_path / "venv" / "bin" / "python")
    call(uv, "venv", "--quiet", "--python", sys.executable, str(tmp_path / "venv"))
    with zipfile.ZipFile(wheel) as archive:
        overrides = archive.extract("harness/overrides.txt", tmp_path)
    bounds = ("--overrides", overrides, "--constraints", str(constraints), "--find-links", str(dist))
    what = f"{harness.DISTRIBUTION}[cpu,plugins] @ {wheel.as_uri()}"
    call(uv, "pip", "install", "--quiet", "--python", python, *bounds, what)

    command = str(tmp_path / "venv" / "bin" / "harness")
    assert "train" in call(command, "--help")
    rows = {row["name"]: row for row in json.loads(call(command, "plugins", "--json"))}
    shipped = {file.parent.name for file in REPO.glob("plugins/*/pyproject.toml")}
    assert rows.keys() == {"builtin"} | shipped and all(row["usable"] for row in rows.values()), rows
    assert rows["builtin"]["distribution"] == harness.DISTRIBUTION
    where = call(python, "-c", "import agentops, tensordict, transfer_queue, verl, harness; print(harness.__file__)")
    assert Path(where.strip().splitlines()[-1]).is_relative_to(tmp_path / "venv")
    certified = call(command, "parity", "langgraph_sql", "--json", HARNESS_CACHE_DIR=str(tmp_path / "cache"))
    assert json.loads(certified)

"""The built wheels install without a checkout, as docs/installing.md says."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

import harness

REPO = Path(__file__).parents[2]


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

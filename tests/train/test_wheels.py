"""The built wheels install without a checkout, as docs/installing.md says."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

import harness

REPO = Path(__file__).parents[2]


def every_command_of_the_core(command: str, folder: Path) -> None:
    """Call each command; all work, or say in one line what is missing, and none ends in a traceback."""
    works = ("--help", "plugins", "plugins --json", "tasks", "tasks --json", "config list")
    works += ("config show cpu", "runs list", "doctor", "plugins new my_agent")
    lacks = ("parity --all", "match reference_sql", "compare runs/a", "serve pocket-sql", "train")
    lacks += ("dev --agent a --endpoint http://127.0.0.1:9/v1", "eval --model pocket-sql")
    lacks += ("tasks show pocket", "plugins sync x")
    of_plugins = ("run", "data", "reward", "score", "policy", "export", "store", "runner", "study")
    for words in (*works, *lacks, *of_plugins):
        done = subprocess.run(
            [command, *words.split()], capture_output=True, text=True, check=False, cwd=folder
        )
        assert "Traceback" not in done.stderr, (words, done.stderr)
        assert done.returncode == (0 if words in works else 2), (words, done.stderr)
        if words in of_plugins:
            assert f"No such command '{words}'. Install it: " in done.stderr, done.stderr


def alone(call: Callable[..., str], uv: str, wheel: Path, folder: Path) -> None:
    """The core and its analysis: no SQL, no verl, no torch. It compares and reports, and says what a training needs."""
    python = str(folder / "bin" / "python")
    call(uv, "venv", "--quiet", "--python", sys.executable, str(folder))
    more = [
        str(one)
        for name in ("report", "power_analysis")
        for one in wheel.parent.glob(f"harness_{name}-*.whl")
    ]
    call(uv, "pip", "install", "--quiet", "--python", python, str(wheel), *more, "pytest")
    call(
        python, "-c", "from harness import *; import harness.testing.data_contract as _", cwd=folder
    )
    command, run = (
        str(folder / "bin" / "harness"),
        next((REPO / "results" / "cpu" / "seed0").glob("**/run.json")),
    )
    help_text = call(command, "--help")
    assert "compare" in help_text and "score" not in help_text
    assert {row["name"] for row in json.loads(call(command, "plugins", "--json"))} == {
        "report",
        "power_analysis",
    }
    row, other = (
        str(run.parent),
        str(next((REPO / "results" / "cpu" / "seed1").glob("**/run.json")).parent),
    )
    assert json.loads(call(command, "runs", "show", row, "--json"))
    assert json.loads(call(command, "compare", row, other, "--format", "json"))
    agents = str(REPO / "results" / "studies" / "frameworks")
    assert json.loads(call(command, "compare", agents, "--format", "json")), (
        "no agent of it is installed here"
    )
    call(command, "report", row, other, "--out", str(folder / "report.html"))
    every_command_of_the_core(command, folder)
    refused = subprocess.run(
        [command, "train"], capture_output=True, text=True, check=False, cwd=folder
    )
    assert refused.returncode == 2 and "no agent called 'langgraph_sql'" in refused.stderr, (
        refused.stderr
    )
    assert "[plugins]" in refused.stderr and not (folder / "runs").exists(), refused.stderr


@pytest.mark.train
@pytest.mark.timeout(1200)
def test_wheels_install_into_a_fresh_environment_and_work(uv: str, tmp_path: Path) -> None:
    # Bytecode is kept, or every process here would compile torch and verl again.
    ours = ("PYTHONPATH", "VIRTUAL_ENV", "PYTHONDONTWRITEBYTECODE")
    outside = {name: value for name, value in os.environ.items() if name not in ours}

    def call(*command: str, cwd: Path = tmp_path, **more: str) -> str:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, env=outside | more, cwd=cwd
        )
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
        return done.stdout

    dist = tmp_path / "dist"
    call(uv, "build", "--quiet", "--sdist", "--out-dir", str(dist), cwd=REPO)
    call(uv, "build", "--quiet", "--all-packages", "--wheel", "--out-dir", str(dist), cwd=REPO)
    for one in dist.glob("*.whl"):
        assert any(name.endswith("licenses/LICENSE") for name in zipfile.ZipFile(one).namelist()), (
            one.name
        )
    (wheel,) = dist.glob("agent_rl_harness-*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    # The core ships one policy; those of single task sets are a package of their own.
    assert wheel.stat().st_size < 10e6
    info = wheel.name.removesuffix("-py3-none-any.whl") + ".dist-info"
    assert wheel.name.split("-")[1] == harness.__version__
    assert {"harness/py.typed", "harness/overrides.txt", f"{info}/licenses/LICENSE"} <= set(names)
    (source,) = dist.glob("agent_rl_harness-*.tar.gz")
    with tarfile.open(source) as sources:
        packed = sources.getnames()
    assert {name for name in names if name.startswith("harness/") and "/configs/" not in name} <= {
        name.partition("/")[2] for name in packed
    }

    alone(call, uv, wheel, tmp_path / "alone")
    frozen = (
        "--frozen",
        "--all-extras",
        "--no-dev",
        "--no-hashes",
        "--no-emit-workspace",
        "--quiet",
    )
    constraints = tmp_path / "constraints.txt"
    call(uv, "export", *frozen, "--output-file", str(constraints), cwd=REPO)
    python = str(tmp_path / "venv" / "bin" / "python")
    call(uv, "venv", "--quiet", "--python", sys.executable, str(tmp_path / "venv"))
    with zipfile.ZipFile(wheel) as archive:
        overrides = archive.extract("harness/overrides.txt", tmp_path)
    bounds = (
        "--overrides",
        overrides,
        "--constraints",
        str(constraints),
        "--find-links",
        str(dist),
    )
    what = f"{harness.DISTRIBUTION}[cpu,plugins] @ {wheel.as_uri()}"
    call(uv, "pip", "install", "--quiet", "--python", python, *bounds, what)

    command = str(tmp_path / "venv" / "bin" / "harness")
    assert "train" in call(command, "--help")
    rows = {row["name"]: row for row in json.loads(call(command, "plugins", "--json"))}
    files = (*REPO.glob("plugins/*/pyproject.toml"), *REPO.glob("contrib/*/pyproject.toml"))
    shipped = {
        file.parent.name for file in files if "entry-points" in file.read_text()
    }  # `subprocess_environments` is a library of two
    assert rows.keys() == shipped and all(row["usable"] for row in rows.values()), rows
    where = call(
        python,
        "-c",
        "import agentops, tensordict, transfer_queue, verl, harness; print(harness.__file__)",
    )
    assert Path(where.strip().splitlines()[-1]).is_relative_to(tmp_path / "venv")
    certified = call(
        command, "parity", "langgraph_sql", "--json", HARNESS_CACHE_DIR=str(tmp_path / "cache")
    )
    assert json.loads(certified)

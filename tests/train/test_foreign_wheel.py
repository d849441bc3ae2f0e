"""Parts that harness does not ship join by their wheel alone, and leave without a trace."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import polars as pl
import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


def call(*command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **environment},
        cwd=EXAMPLES,
    )


# Hypothesis' plugin imports it only at the end, where CPython 3.11.7 now and then fails to compile it (gh-106905).
PLAIN = ("-p", "no:cacheprovider", "-p", "no:hypothesispytest")


def installed(source: Path, folder: Path, uv: str) -> str:
    """The interpreter of a copy of this environment with the wheel of a plugin in it."""
    home = folder / "venv"
    venv.create(home)
    python = str(home / "bin" / "python")
    packages = Path(
        call(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").stdout.strip()
    )
    base = sysconfig.get_path("purelib")
    (packages / "zz_base.pth").write_text(f"import site; site.addsitedir({base!r})\n")
    built = call(uv, "build", "--quiet", "--wheel", "--out-dir", str(folder), str(source))
    if built.returncode:
        pytest.skip(f"no package index to build with: {built.stderr.strip().splitlines()[-1]}")
    before = json.loads(call(python, "-m", "harness", "plugins", "--json").stdout)
    assert source.name not in [row["name"] for row in before]
    # Without dependencies: they are in the environment below, which no installer sees.
    wheels = map(str, folder.glob("*.whl"))
    done = call(uv, "pip", "install", "--quiet", "--no-deps", "--python", python, *wheels)
    assert done.returncode == 0, done.stderr
    contract = call(python, "-m", "pytest", "-q", *PLAIN, str(source))
    assert contract.returncode == 0, contract.stdout[-3000:] + contract.stderr[-3000:]
    return python


@pytest.mark.train
@pytest.mark.timeout(1200)
def test_an_agent_s_wheel_proves_itself_and_uninstalls(uv: str, tmp_path: Path) -> None:
    new = call(
        sys.executable, "-m", "harness", "plugins", "new", "foreign_sql", "--dir", str(tmp_path)
    )
    assert new.returncode == 0, new.stderr
    python = installed(tmp_path / "foreign_sql", tmp_path, uv)
    listed = call(python, "-m", "harness", "plugins", "--json").stdout
    rows = {row["name"]: row for row in json.loads(listed)}
    assert rows["foreign_sql"]["usable"]
    cache = str(tmp_path / "cache")
    parity = call(python, "-m", "harness", "parity", "foreign_sql", HARNESS_CACHE_DIR=cache)
    assert parity.returncode == 0, parity.stdout[-3000:] + parity.stderr[-2000:]

    gone = call(uv, "pip", "uninstall", "--quiet", "--python", python, "harness-foreign-sql")
    assert gone.returncode == 0, gone.stderr
    after = call(python, "-m", "harness", "train", "--plugin", "foreign_sql", "--ci-fast")
    assert after.returncode == 2 and "no agent called 'foreign_sql'" in after.stderr
    assert sys.executable != python


@pytest.mark.train
@pytest.mark.timeout(1200)
def test_a_task_without_a_database_is_trained_and_its_reward_s_parts_are_kept(
    uv: str, tmp_path: Path
) -> None:
    python = installed(EXAMPLES / "arithmetic", tmp_path, uv)
    few = (
        "train.steps=1",
        "train.batch_size=4",
        "train.val_every=0",
        "task.val_limit=4",
        "device=cpu",
    )
    settings = [
        part for one in ("reward.name=arithmetic", "agent_match=.", *few) for part in ("--set", one)
    ]
    runs = str(tmp_path / "runs")
    arguments = (
        "--plugin",
        "reference_tools",
        "--task",
        "arithmetic",
        *settings,
        "--runs-dir",
        runs,
    )
    done = call(python, "-m", "harness", "train", *arguments)
    assert done.returncode == 0, done.stderr[-3000:]
    (run,) = Path(runs).glob("*/run.json")
    record = json.loads(run.read_text())
    assert (record["status"], record["result"]["steps"]) == ("finished", 1)
    rows = pl.read_parquet(run.with_name("episodes.parquet"))
    assert len(rows) == 4 * 4 + 2 * 4 and (rows["outcome"] == "ok").all()
    assert all(json.loads(parts).keys() == {"near", "calculated"} for parts in rows["reward_parts"])


@pytest.mark.train
@pytest.mark.timeout(1200)
def test_a_trainer_that_is_not_verl_trains_and_goes_on(uv: str, tmp_path: Path) -> None:
    installed(EXAMPLES / "own_trainer", tmp_path, uv)

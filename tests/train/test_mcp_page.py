"""The commands of docs/mcp.md do what it says."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pyarrow.parquet
import pytest
import yaml

from harness.config import Config, load_config

REPO = Path(__file__).resolve().parents[2]
PAGE = (REPO / "docs" / "mcp.md").read_text(encoding="utf-8")


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A folder in which `.venv` and `examples` are as in a checkout."""
    programs = tmp_path / ".venv" / "bin"
    programs.mkdir(parents=True)
    (tmp_path / "examples").symlink_to(REPO / "examples")
    for name, module in (("python", ""), ("harness", "-m harness")):
        (programs / name).write_text(
            f'#!/bin/sh\nexec {shlex.quote(sys.executable)} {module} "$@"\n'
        )
        (programs / name).chmod(0o755)
    return tmp_path


def run(command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": str(REPO)}
    return subprocess.run(
        command, shell=True, cwd=folder, env=environment, capture_output=True, text=True
    )


@pytest.mark.slow
def test_the_server_is_looked_at_and_measured(checkout: Path) -> None:
    (block,) = re.findall(r"^```console\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    check, evaluate = (part.partition("\n") for part in block.split("$ ")[1:])
    done = run(check[0], checkout)
    assert done.stdout == check[2], done.stderr[-2000:]
    done = run(evaluate[0], checkout)
    assert done.returncode == 0, done.stderr[-2000:]
    (file,) = checkout.glob("runs/*/episodes.parquet")
    rows = pyarrow.parquet.read_table(file).to_pylist()
    assert len(rows) == 8 and {row["outcome"] for row in rows} == {"ok"}
    assert sum(row["reward"] for row in rows) > 2, "the policy knows the tool"


def test_the_configuration_of_the_page_is_one(tmp_path: Path) -> None:
    (text,) = re.findall(r"^```yaml\n# shop\.yaml\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    Config.model_validate(yaml.safe_load(text))
    (tmp_path / "shop.yaml").write_text(text)
    assert (
        load_config(None, tmp_path / "shop.yaml").task.options["servers"]["clock"]["command"]
        == "uvx"
    )


@pytest.mark.train
@pytest.mark.timeout(900)
def test_the_training_of_the_page(
    checkout: Path, shared: Mapping[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in shared.items():
        monkeypatch.setenv(name, value)
    (arguments,) = re.findall(r'^make train EXTRAS=cpu TRAIN_ARGS="(.*)"$', PAGE, re.MULTILINE)
    done = run(f".venv/bin/harness train {arguments} --ci-fast", checkout)
    assert done.returncode == 0, done.stderr[-3000:]
    (file,) = checkout.glob("runs/*/episodes.parquet")
    rows = pyarrow.parquet.read_table(file).to_pylist()
    assert {row["phase"] for row in rows} == {"train", "val"} and all(
        row["outcome"] == "ok" for row in rows
    )

"""`harness train` and `harness eval` make the parity certificate that a comparison will ask for."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness.testing.fixtures import StartServer

Harness = Callable[..., subprocess.CompletedProcess[str]]
TRAINING = (
    *("train", "--preset", "cpu", "--set", "train.trainer=synthetic", "--steps", "1"),
    *("--set", "train.batch_size=2", "--set", "rollout.group_size=1", "--set", "task.val_limit=2"),
)
MADE = "creating it first, from scripted episodes"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HARNESS_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache" / "parity"


def record(tmp_path: Path) -> Any:
    (path,) = (tmp_path / "runs").glob("*/run.json")
    return json.loads(path.read_text())


@pytest.mark.slow
def test_a_training_makes_a_missing_certificate_once(
    harness: Harness, cache: Path, tmp_path: Path
) -> None:
    done = harness(*TRAINING, "--agent", "same_sql")
    assert done.returncode == 0, done.stderr
    assert f"no parity certificate for same_sql: {MADE}" in done.stderr
    (certificate,) = cache.glob("same_sql-*.json")
    assert record(tmp_path)["parity"] == json.loads(certificate.read_text())
    again = harness(*TRAINING, "--agent", "same_sql", "--runs-dir", "others")
    assert again.returncode == 0 and MADE not in again.stderr, again.stderr


@pytest.mark.slow
def test_an_agent_that_fails_parity_is_refused_before_its_training(
    harness: Harness, cache: Path, tmp_path: Path
) -> None:
    refused = harness(*TRAINING, "--agent", "skips_sql")
    assert refused.returncode == 2 and not (tmp_path / "runs").exists(), refused.stderr
    last = refused.stderr.splitlines()[-1]
    assert last.startswith("harness: skips_sql fails parity") and "--without-parity" in last
    anyway = harness(*TRAINING, "--agent", "skips_sql", "--without-parity")
    assert anyway.returncode == 0, anyway.stderr
    assert record(tmp_path)["parity"] is None and not cache.exists()


@pytest.mark.slow
def test_an_evaluation_makes_a_missing_certificate(
    harness: Harness, cache: Path, tmp_path: Path, scripted_server: StartServer
) -> None:
    server = scripted_server(lambda request: "```sql\nSELECT 1\n```", token_ids=False)
    asked = ("eval", "--agent", "same_sql", "--endpoint", server.base_url, "--limit", "1")
    done = harness(*asked)
    assert done.returncode == 0, done.stderr
    assert MADE in done.stderr and record(tmp_path)["parity"]["agent"] == "same_sql"

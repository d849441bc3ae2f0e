"""The same command on a CUDA device: `make test-gpu`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from harness.config import resolve_device

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.timeout(900),
    pytest.mark.skipif(resolve_device("auto") != "cuda", reason="needs a CUDA device"),
]


def test_vllm_serves_the_policy_that_verl_trains(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "harness", "train", "--plugin", "langgraph_sql", "--ci-fast"]
    done = subprocess.run([*command, "--runs-dir", str(tmp_path), "--json"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    record = json.loads(done.stdout)
    assert record["device"] == "cuda" and record["hardware"]["gpus"]
    assert record["result"]["steps"] == 1
    assert (
        record["result"]["rollout_probs_diff_max"] < 0.3
    )  # bf16 rollouts against fp32 weights, one token's worst case

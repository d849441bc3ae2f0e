"""A LitAgent on LangGraph, as the literature's SQL example is one, trains as it is."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from . import conftest

pytestmark = [pytest.mark.train, pytest.mark.timeout(900)]

AGENTS = conftest.REPO / "contrib" / "agent_lightning" / "tests" / "agents"


def test_two_steps_train_the_rows_of_the_role_that_langgraph_names(
    tmp_path: Path, shared: Mapping[str, str]
) -> None:
    command = [sys.executable, "-m", "harness", "train", "--agent", f"{AGENTS}/graph.py:SyncGraph"]
    command += ["--runs-dir", str(tmp_path), *conftest.TWO_STEPS]
    done = subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, **shared}, timeout=600
    )
    assert done.returncode == 0, done.stderr[-3000:]
    (run,) = tmp_path.iterdir()
    record = json.loads((run / "run.json").read_text())
    assert (record["status"], record["result"]["steps"]) == ("finished", 2)

    episodes = pq.read_table(run / "episodes.parquet").to_pylist()
    failures = [row["detail"] for row in episodes if row["outcome"] != "ok"]
    assert not failures, failures
    # The policy knows the prompt of `write_query`, so that some answers are right.
    assert {row["reward"] for row in episodes if row["phase"] == "train"} == {0.0, 1.0}

    calls = pq.read_table(run / "transitions.parquet").to_pylist()
    assert {row["role"] for row in calls} == {"write_query", "check_query"}
    trained = [row for row in calls if row["trained"]]
    assert {row["step"] for row in trained} == {1, 2}
    assert {row["role"] for row in trained} == {"write_query"}
    assert all(row["response_ids"] and row["logprobs"] for row in trained)

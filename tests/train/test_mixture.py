"""A real training in which several agents make the rollouts, and its resumption."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import polars as pl
import pytest

from harness.runs.folder import RunFolder
from tests.train.conftest import SMALL

pytestmark = [pytest.mark.train, pytest.mark.timeout(900)]

AGENTS = ["reference_sql", "langgraph_sql_idiomatic"]


def train(arguments: list[str], shared: Mapping[str, str]) -> str:
    command = [sys.executable, "-m", "harness", "train", *arguments]
    done = subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, **shared}, timeout=600
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def mixed(server: object, tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """A finished training of two steps by both agents."""
    runs = tmp_path_factory.mktemp("mixed")
    arguments = ["--agent", ",".join(AGENTS), "--steps", "2", *SMALL, "--runs-dir", str(runs)]
    output = train(arguments, server.variables)  # type: ignore[attr-defined]
    (path,) = runs.iterdir()
    assert f"harness eval {path} --agent reference_sql" in output.replace("\n", "")
    return RunFolder.open(path)


def test_the_rollouts_of_a_task_are_made_by_one_agent_and_shares_are_equal(
    mixed: RunFolder,
) -> None:
    episodes = pl.read_parquet(mixed.path / "episodes.parquet")
    assert set(episodes["agent"]) == set(AGENTS)
    groups = episodes.group_by("phase", "step", "task_id").agg(pl.n_unique("agent"))
    assert set(groups["agent"]) == {1}
    for _, of_step in episodes.group_by("phase", "step"):
        assert len(set(of_step.group_by("agent").len()["len"])) == 1


def test_each_rollout_has_the_calls_of_its_agent_alone(mixed: RunFolder) -> None:
    episodes = pl.read_parquet(mixed.path / "episodes.parquet")
    calls = pl.read_parquet(mixed.path / "transitions.parquet")
    agents = dict(episodes.select("rollout_id", "agent").rows())
    roles: dict[str, set[str]] = {agent: set() for agent in AGENTS}
    for rollout, role in calls.select("rollout_id", "role").rows():
        roles[agents[rollout]].add(role)
    assert roles["langgraph_sql_idiomatic"] == {"write_query"}
    assert {"write_query", "check_query"} <= roles["reference_sql"]
    # The reference writes text, LangGraph's own agent offers a tool in every call.
    offering = episodes.select("agent", offers=pl.col("calls_with_tools").fill_null(0) > 0).unique()
    expected = [("langgraph_sql_idiomatic", True), ("reference_sql", False)]
    assert sorted(offering.rows()) == expected


def test_the_record_names_every_agent(mixed: RunFolder) -> None:
    record = mixed.read()
    assert record["agent"] == ",".join(AGENTS)
    assert list(record["mixture"]) == AGENTS
    assert record["parity"] is None and "shadow" not in record
    assert {"httpx", "langgraph"} <= set(record["frameworks"])


def test_a_resumed_training_has_the_same_agents_and_rewards(
    mixed: RunFolder, shared: Mapping[str, str], tmp_path: Path
) -> None:
    arguments = ["--agent", ",".join(AGENTS), "--steps", "2", *SMALL, "--runs-dir", str(tmp_path)]
    # It stops before its second step, as if it had been interrupted.
    stopped = subprocess.Popen(
        [sys.executable, "-m", "harness", "train", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, **shared},
    )
    assert stopped.stdout is not None
    for line in stopped.stdout:
        if "step 1/2" in line:
            stopped.terminate()
    stopped.wait(120)
    (path,) = tmp_path.iterdir()
    train(["--resume", str(path)], shared)
    keys = ["phase", "step", "task_id", "session"]
    columns = [*keys, "agent", "answer", "reward"]
    resumed = pl.read_parquet(path / "episodes.parquet").select(columns).sort(keys)
    whole = pl.read_parquet(mixed.path / "episodes.parquet").select(columns).sort(keys)
    assert resumed.equals(whole)

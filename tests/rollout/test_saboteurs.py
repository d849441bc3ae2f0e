"""An agent that blocks or ends its worker fails its own rollout; the others are judged, and the run goes on."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from harness.config import load_config
from harness.tasks.pocket import PocketTasks
from harness.testing.fixtures import StartServer
from harness.trainers.order import validation_order

from .test_evaluation import golden

AGENT = """
import asyncio, ctypes, os, signal, threading, time
from harness.programs.self_correcting_sql.reference import ReferenceSQL
from harness.hookspecs import AgentSpec, hookimpl

HARNESS_API = 1

@hookimpl
def harness_agents():
    return [AgentSpec("saboteur_sql", "saboteur:Saboteur", "Sabotage.", roles=ReferenceSQL.roles)]

def spin():
    while True:
        pass

DEEDS = [
    lambda: time.sleep(1000),
    spin,
    lambda: os._exit(0),
    lambda: os.kill(os.getpid(), signal.SIGKILL),
    lambda: [task.cancel() for task in asyncio.all_tasks()],
    lambda: asyncio.get_running_loop().stop(),
    lambda: asyncio.get_running_loop().close(),
    lambda: ctypes.string_at(0),
]

class Saboteur(ReferenceSQL):
    async def solve(self, problem, toolbox):
        answer = await super().solve(problem, toolbox)
        planned = os.environ["DEEDS"].split()
        if problem.task_id in planned:
            deed = DEEDS[planned.index(problem.task_id)]
            if deed is DEEDS[2]:
                await asyncio.to_thread(deed)  # where frameworks run what is not async
            else:
                deed()
                await asyncio.sleep(0)
        return answer
"""


@pytest.fixture
def saboteur(tmp_path: Path) -> dict[str, str]:
    """Variables with which `saboteur_sql` is an installed agent."""
    folder = tmp_path / "plugin"
    info = folder / "saboteur-0.1.dist-info"
    info.mkdir(parents=True)
    (folder / "saboteur.py").write_text(AGENT)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: saboteur\nVersion: 0.1\n")
    (info / "entry_points.txt").write_text("[harness]\nsaboteur = saboteur\n")
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])}


@pytest.mark.timeout(300)
def test_who_sabotages_fails_alone(tmp_path: Path, saboteur: dict[str, str], scripted_server: StartServer) -> None:
    tasks = validation_order(PocketTasks().load("val"), load_config("cpu", overrides=["task.val_limit=24"]))
    outcomes = ["timeout", "timeout", *["agent_error"] * 3, "ok", *["agent_error"] * 2]
    bad = dict(zip([task.id for task in tasks[::3]], outcomes, strict=True))
    server = scripted_server(golden, token_ids=False)
    done = subprocess.run(
        [
            *(sys.executable, "-m", "harness", "eval", "--plugin", "saboteur_sql", "--endpoint", server.base_url),
            *("--limit", "24", "--runs-dir", str(tmp_path / "runs")),
            *("--set", "rollout.timeout_s=8", "--set", "rollout.concurrency=6"),
        ],
        env={**saboteur, "DEEDS": " ".join(bad)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr + done.stdout
    (run,) = (tmp_path / "runs").iterdir()
    rows = pq.read_table(run / "episodes.parquet").to_pylist()
    assert {row["task_id"]: row["outcome"] for row in rows} == {task.id: bad.get(task.id, "ok") for task in tasks}
    assert all(row["reward"] == (row["outcome"] == "ok") for row in rows)
    assert "accuracy 70.8 %" in done.stdout and "24 scored of 24" in done.stdout

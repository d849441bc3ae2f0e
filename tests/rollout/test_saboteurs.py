"""An agent that blocks or ends its worker fails its own rollout; the others are judged, and the run goes on."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from harness.config import load_config
from harness.records import Attempt
from harness.runs.episodes import transition_rows
from harness.testing.calls import transition
from harness.testing.fixtures import StartServer
from harness.training.task_order import validation_order
from harness_sql.tasks.pocket import PocketTasks

from .test_evaluation import golden

AGENT = """
import asyncio, ctypes, os, signal, threading, time
from harness_sql.self_correcting.reference import ReferenceSQL
from harness.contracts.hookspecs import AgentSpec, hookimpl

HARNESS_API = 1

@hookimpl
def harness_agents():
    SQL = "self_correcting_sql"
    return [
        AgentSpec("saboteur_sql", "saboteur:Saboteur", "Sabotage.", roles=ReferenceSQL.roles, program=SQL),
        AgentSpec("babbler_sql", "saboteur:Babbler", "Talks.", roles=ReferenceSQL.roles, program=SQL),
        AgentSpec("shouter_sql", "saboteur:Shouter", "Shouts.", roles=ReferenceSQL.roles, program=SQL),
    ]

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
    lambda: 1 / 0,
]

class Saboteur(ReferenceSQL):
    async def solve(self, problem, toolbox):
        await asyncio.to_thread(asyncio.run, asyncio.sleep(0))  # a loop of its own: no sabotage, frameworks do so
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

class Babbler(ReferenceSQL):
    async def solve(self, problem, toolbox):
        for _ in range(40):
            print("x" * 2**20)
        await toolbox.execute("y" * 5_000_000)
        return await super().solve(problem, toolbox) + "z" * 5_000_000

class Shouter(ReferenceSQL):
    async def solve(self, problem, toolbox):
        sizes = dict(one.split("=") for one in os.environ["SIZES"].split())
        if size := int(sizes.get(problem.task_id, 0)):
            message = {"role": "user", "content": "a b " * (size // 4)}
            await toolbox.llm(min(self.roles)).complete(toolbox.http_client, [message])
        return await super().solve(problem, toolbox)
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
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")]),
    }


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_who_sabotages_fails_alone(
    tmp_path: Path, saboteur: dict[str, str], scripted_server: StartServer
) -> None:
    tasks = validation_order(
        PocketTasks().load("val"), load_config("cpu", overrides=["task.val_limit=24"])
    )
    outcomes = ["timeout", "timeout", *["agent_error"] * 3, "ok", *["agent_error"] * 3]
    bad = dict(zip([task.id for task in [*tasks[::3], tasks[1]]], outcomes, strict=True))
    server = scripted_server(golden, token_ids=False)
    done = subprocess.run(
        [
            *(
                sys.executable,
                "-m",
                "harness",
                "eval",
                "--plugin",
                "saboteur_sql",
                "--endpoint",
                server.base_url,
            ),
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
    assert {row["task_id"]: row["outcome"] for row in rows} == {
        task.id: bad.get(task.id, "ok") for task in tasks
    }
    assert all(row["reward"] == (row["outcome"] == "ok") for row in rows)
    logs = "".join(file.read_text() for file in (run / "logs").glob("runner-*.log"))
    assert re.search(
        r"Traceback.*saboteur\.py\", line \d+, in <lambda>\n.*ZeroDivisionError", logs, re.DOTALL
    )
    ids = {row["task_id"]: row["rollout_id"] for row in rows}
    for task_id, outcome in bad.items():
        if outcome == "timeout":
            culprit = f"the running task belongs to rollout {ids[task_id]}"
            stack = rf"event loop has been blocked for [\d.]+ s; {culprit}.*saboteur\.py"
            assert re.search(stack, logs, re.DOTALL), logs
    assert "accuracy 66.7 %" in done.stdout and "24 scored of 24" in done.stdout


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_messages_of_any_size_fail_the_rollout_that_sent_them_alone(
    tmp_path: Path, saboteur: dict[str, str]
) -> None:
    config = load_config("cpu", overrides=["task.val_limit=12"])
    tasks = validation_order(PocketTasks().load("val"), config)
    # Refused by the gateway; by the policy server, for its characters; and for its tokens.
    sizes = {tasks[1].id: 20_000_000, tasks[4].id: 1_000_000, tasks[7].id: 40_000}
    command = [sys.executable, "-m", "harness", "eval", "--model", "pocket-sql"]
    done = subprocess.run(
        [
            *(*command, "--plugin", "shouter_sql", "--set", "device=cpu", "--limit", "12"),
            *("--runs-dir", str(tmp_path / "runs"), "--set", "rollout.concurrency=6"),
        ],
        env={**saboteur, "SIZES": " ".join(f"{task}={size}" for task, size in sizes.items())},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr + done.stdout
    (run,) = (tmp_path / "runs").iterdir()
    rows = pq.read_table(run / "episodes.parquet").to_pylist()
    assert {row["task_id"]: row["outcome"] for row in rows} == {
        task.id: "prompt_too_long" if task.id in sizes else "ok" for task in tasks
    }
    assert all(row["reward"] == 0 for row in rows if row["task_id"] in sizes)
    assert "12 scored of 12" in done.stdout


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_what_an_agent_prints_and_answers_is_kept_in_bounds(
    tmp_path: Path, saboteur: dict[str, str], scripted_server: StartServer
) -> None:
    server = scripted_server(lambda request: f"```sql\n{'w' * 2_000_000}\n```", token_ids=False)
    done = subprocess.run(
        [
            *(
                sys.executable,
                "-m",
                "harness",
                "eval",
                "--plugin",
                "babbler_sql",
                "--endpoint",
                server.base_url,
            ),
            *("--limit", "1", "--runs-dir", str(tmp_path / "runs"), "--set", "max_turns=2"),
            # The gateway's bound follows from it: a request with two replies of 2 MB passes.
            *("--set", "sampling.max_prompt_tokens=16384"),
        ],
        env=saboteur,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr + done.stdout
    (run,) = (tmp_path / "runs").iterdir()
    log = (run / "logs" / "runner-0.log").read_bytes()
    assert len(log) <= 16 * 2**20 and b"part of this log is left out here: it passed 16 MiB" in log
    (row,) = pq.read_table(run / "episodes.parquet").to_pylist()
    assert (
        set(row["cut"]) == {"answer", "first_answer", "tool_calls"}
        and row["outcome"] == "ok"
        and row["reward"] == 0
    )
    assert (
        len(row["answer"]) == len(row["first_answer"]) == 100_000
        and len(row["tool_calls"]) < 1_100_000
    )
    (call, *_) = json.loads(row["tool_calls"])
    (argument,) = call["arguments"].values()
    assert argument == "y" * len(argument) and len(argument) > 900_000 and not call["ok"]
    write, check, *_ = pq.read_table(run / "transitions.parquet").to_pylist()
    assert write["cut"] == ["response_text"] and len(write["response_text"]) == 100_000
    assert check["cut"] == ["messages", "response_text"] and len(check["messages"]) < 1_100_000
    assert json.loads(check["messages"])[0]["role"] == "system"
    assert sum(file.stat().st_size for file in run.rglob("*") if file.is_file()) < 32 * 2**20


def test_token_ids_are_never_cut() -> None:
    call = transition(
        *("w", 0),
        response_ids=tuple(range(300_000)),
        logprobs=(-0.5,) * 300_000,
        prompt_ids=tuple(range(200_000)),
        response_text="x" * 300_000,
    )
    attempt = Attempt("r", "a", "ok", "", "y" * 300_000, (call,), (), (), 0.0, 1.0)
    (row,) = transition_rows(attempt, phase="train", step=1, paid={0: 1.0})
    assert row["cut"] == ["response_text"] and row["response_ids"] == call.response_ids
    assert row["logprobs"] == call.logprobs and row["prompt_ids"] == call.prompt_ids


REWRITES = """
import os
from pathlib import Path

MODE = "as recorded"

class Mine:
    program = "self_correcting_sql"

    async def solve(self, problem, toolbox):
        if MODE == "another":
            return "SELECT 1"
        file = Path(__file__)
        file.write_text(file.read_text().replace('MODE = "as recorded"', 'MODE = "another"', 1))
        os._exit(3)
"""


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_no_runner_takes_rollouts_with_another_source_than_the_recorded_one(
    tmp_path: Path, scripted_server: StartServer
) -> None:
    (tmp_path / "mine.py").write_text(REWRITES)
    server = scripted_server(golden, token_ids=False)
    command = [sys.executable, "-m", "harness", "eval", "--agent", f"{tmp_path / 'mine.py'}:Mine"]
    command += ["--endpoint", server.base_url, "--limit", "4", "--without-parity"]
    command += ["--runs-dir", str(tmp_path / "runs"), "--set", "rollout.runners=1"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 1, done.stderr + done.stdout
    assert "the source of agent" in done.stderr and "has changed since the run began" in done.stderr
    (run,) = (tmp_path / "runs").iterdir()
    assert json.loads((run / "run.json").read_text())["status"] == "failed"
    rows = []
    if (run / "episodes.parquet").exists():
        rows = pq.read_table(run / "episodes.parquet").to_pylist()
    assert "SELECT 1" not in {row["answer"] for row in rows}

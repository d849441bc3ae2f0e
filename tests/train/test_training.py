"""Real trainings through the command line: real verl, Ray, store, gateway, LangGraph, on the CPU."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import psutil
import pyarrow.parquet as pq
import pytest

from harness.config import load_config
from harness.policies import resolve
from harness.policies.roles import answerers
from harness.runs.folder import RunFolder
from harness_verl.update_times import PARTS
from partial_policies import without_a_tensor

from . import conftest

pytestmark = [pytest.mark.train, pytest.mark.timeout(900)]

SMALL = [*conftest.SMALL, "--set", "rollout.timeout_s=60"]


def start(
    *arguments: str | Path, log: Path, variables: Mapping[str, str] | None = None
) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "harness", "train", *map(str, arguments)]
    with log.open("ab") as output:
        environment = {**os.environ, **(variables or {})}
        return subprocess.Popen(
            command, stdout=output, stderr=output, start_new_session=True, env=environment
        )


def wait_for(
    condition: Callable[[], Any], process: subprocess.Popen[bytes], log: Path, limit_s: float = 600
) -> Any:
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        if found := condition():
            return found
        assert process.poll() is None, log.read_text()[-3000:]
        time.sleep(0.1)
    raise AssertionError(f"not in {limit_s} s; {log.read_text()[-3000:]}")


def processes_of(root: Path) -> list[psutil.Process]:
    """Processes of the trainings under `root`: they carry their run's mark."""
    ids = [path.name for path in root.iterdir()]
    found = []
    for process in psutil.process_iter():
        try:
            mark = process.environ().get("HARNESS_RUN_MARK", "")
            if (
                any(mark.startswith(run) for run in ids)
                and process.status() != psutil.STATUS_ZOMBIE
            ):
                found.append(process)
        except psutil.Error:
            continue
    return found


def names_of_group(leader: int) -> list[str]:
    """Command lines of a process group."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if os.getpgid(process.pid) == leader and process.status() != psutil.STATUS_ZOMBIE:
                found.append(" ".join(process.cmdline()))
    return found


def of_this_test(root: Path) -> list[str]:
    """Their command lines."""
    lines = []
    for process in processes_of(root):
        with contextlib.suppress(psutil.Error):
            lines.append(" ".join(process.cmdline()))
    return lines


def all_gone(root: Path, within_s: float) -> bool:
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        if not of_this_test(root):
            return True
        time.sleep(0.2)
    return False


@pytest.mark.timeout(1800)  # three launches
def test_a_killed_training_leaves_nothing_and_resumes(
    tmp_path: Path, shared: Mapping[str, str], left_alone: Callable[[], Path]
) -> None:
    runs, log = tmp_path / "runs", tmp_path / "log"
    runs.mkdir()
    process = start("--plugin", "langgraph_sql", "--runs-dir", runs, *conftest.TWO_STEPS, log=log)
    wait_for(
        lambda: list(runs.glob("*/checkpoints/latest_checkpointed_iteration.txt")), process, log
    )
    needless = ("autoscaler/_private/monitor.py", "dashboard/dashboard.py", "ray::DashboardAgent")
    assert not [line for line in of_this_test(runs) if any(name in line for name in needless)]
    os.kill(process.pid, signal.SIGKILL)  # no chance to clean up
    process.wait()
    assert all_gone(runs, 20), of_this_test(runs)
    (run,) = runs.iterdir()
    assert json.loads((run / "run.json").read_text())["status"] == "running"
    assert 1 in grad_norms(
        run
    )  # on disk before the checkpoint: a launch that goes on from it could not make it again

    resumed = start("--resume", run, log=log, variables=shared)
    assert resumed.wait(600) == 0, log.read_text()[-3000:]
    assert all_gone(runs, 10), of_this_test(runs)

    record = json.loads((run / "run.json").read_text())
    assert (record["status"], record["result"]["steps"], len(record["launches"])) == (
        "finished",
        2,
        2,
    )
    assert (
        record["result"]["val_accuracy_initial"] is not None
        and record["result"]["val_accuracy_final"] is not None
    )
    episodes = pq.read_table(run / "episodes.parquet").to_pylist()
    done = Counter((row["phase"], row["step"], row["task_id"], row["session"]) for row in episodes)
    assert set(done.values()) == {1}, "a step that was done again counts twice"
    assert Counter((phase, step) for phase, step, *_ in done) == {
        ("val", 0): 8,
        ("train", 1): 16,
        ("val", 1): 8,  # comes after the checkpoint, so the first launch cannot have ended it
        ("train", 2): 16,
        ("val", 2): 8,
    }
    assert {row["outcome"] for row in episodes} == {"ok"} and all(
        row["reward"] is not None for row in episodes
    )
    steps = {row["step"]: row for row in pq.read_table(run / "steps.parquet").to_pylist()}
    assert grad_norms(run).keys() == {1, 2} and all(
        steps[step]["actor/grad_norm"] for step in (1, 2)
    )
    for step in (1, 2):
        parts = [steps[step][f"timing_s/update_{part}"] for part in PARTS]
        assert min(parts) > 0 and sum(parts) < steps[step]["timing_s/update_actor"]
    # The engine's log-probabilities and the trainer's, on the same token ids: re-tokenized ids would differ.
    gaps = {step: row.get("training/rollout_probs_diff_max") for step, row in steps.items()}
    assert gaps[2] is not None and all(gap < 1e-3 for gap in gaps.values() if gap is not None)
    transitions = pq.read_table(run / "transitions.parquet").to_pylist()
    assert len({row["response_id"] for row in transitions}) == len(transitions)
    trained = [row for row in transitions if row["trained"]]
    assert trained and {row["role"] for row in trained} <= {"write_query", "rewrite_query"}
    assert all(len(row["response_ids"]) == len(row["logprobs"]) for row in trained)
    exported_answers_as_the_trainers_policy(
        run, [row for row in transitions if row["phase"] == "val" and row["step"] == 2]
    )
    the_same_in_another_framework(run, left_alone())


def the_same_in_another_framework(run: Path, again: Path) -> None:
    """Another agent, twice the runners and agent-loop workers, never interrupted: bit for bit one training."""
    assert RunFolder.open(again).read()["agent"] != RunFolder.open(run).read()["agent"]
    assert grad_norms(again) == grad_norms(run)
    assert answers(again) == answers(run)
    trained, expected = weights(again), weights(run)
    assert trained.keys() == expected.keys() and all(
        trained[name].equal(expected[name]) for name in trained
    )


def answers(run: Path) -> list[tuple[Any, ...]]:
    """Final query and reward of every rollout, by what it is."""
    names = ("phase", "step", "task_id", "session", "answer", "reward")
    rows = pq.read_table(run / "episodes.parquet", columns=list(names)).to_pylist()
    return sorted(tuple(row[name] for name in names) for row in rows)


def grad_norms(run: Path) -> dict[int, float]:
    rows = RunFolder(run).rows("steps")
    return {
        row["step"]: row["data"]["actor/grad_norm"]
        for row in rows
        if "actor/grad_norm" in row["data"]
    }


def weights(run: Path) -> dict[str, Any]:
    """The policy's, of the last checkpoint."""
    import torch

    file = run / "checkpoints" / "global_step_2" / "actor" / "model_world_size_1_rank_0.pt"
    return {name: one.to_local() for name, one in torch.load(file, weights_only=False).items()}


def exported_answers_as_the_trainers_policy(run: Path, greedy: list[dict[str, Any]]) -> None:
    """The exported folder is the last policy: greedy decoding gives the tokens of the last validation."""
    folder = run.parent.parent / "exported"
    command = [sys.executable, "-m", "harness", "export", str(run), "--to", str(folder), "--json"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    written = json.loads(done.stdout)
    assert written["step"] == 2 and written["hash"] != written["initial_hash"]
    greedy_answers_are_of(folder, greedy)


def greedy_answers_are_of(folder: Path | str, greedy: list[dict[str, Any]]) -> None:
    """The policy in a folder would answer the same, token for token."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    assert greedy
    for row in greedy:
        prompt = torch.tensor([row["prompt_ids"]])
        answer = model.generate(prompt, max_new_tokens=64, do_sample=False, pad_token_id=0)
        assert answer[0, prompt.shape[1] :].tolist() == row["response_ids"]


def test_rejection_beside_a_frozen_checker_is_one_training_in_two_frameworks(
    tmp_path: Path, shared: Mapping[str, str]
) -> None:
    """Cross entropy on the best rollouts of a policy, whose checks another process answers with the first weights."""
    own = ("--set", "train.algorithm=rejection", "--set", "roles.check_query.policy=pocket-sql")
    found = []
    for agent in ("reference_sql", "langgraph_sql"):
        runs, log = tmp_path / agent, tmp_path / f"{agent}.log"
        process = start(
            "--plugin",
            agent,
            "--steps",
            "2",
            "--runs-dir",
            runs,
            *SMALL,
            *own,
            log=log,
            variables=shared,
        )
        assert process.wait(600) == 0, log.read_text()[-3000:]
        assert all_gone(runs, 10), of_this_test(runs)
        found += [*runs.iterdir()]
    one, other = found
    assert not [
        process
        for process in psutil.process_iter(["cmdline"])
        if str(one) in str(process.info["cmdline"])
    ]
    assert grad_norms(one) == grad_norms(other) and all(
        grad_norms(one)[step] > 0 for step in (1, 2)
    )
    assert answers(one) == answers(other)
    trained, expected = weights(one), weights(other)
    assert trained.keys() == expected.keys() and all(
        trained[name].equal(expected[name]) for name in trained
    )
    record = json.loads((one / "run.json").read_text())
    assert record["identity"]["role_models"] == {"check_query": record["identity"]["model"]}
    assert record["identity"]["train"]["algorithm"] == "rejection" and record["roles"] == {
        "check_query": "pocket-sql"
    }

    episodes = pq.read_table(one / "episodes.parquet").to_pylist()
    best: dict[tuple[int, str], float] = {}
    for row in episodes:
        if row["phase"] == "train":
            key = (row["step"], row["task_id"])
            best[key] = max(row["reward"], best.get(key, 0.5))
    chosen, whole = Counter[int](), Counter[int]()
    for row in episodes:
        if row["phase"] == "train":
            good = row["reward"] >= best[row["step"], row["task_id"]]
            whole[row["step"]] += row["trained_tokens"]
            chosen[row["step"]] += good * row["trained_tokens"]
    steps = {row["step"]: row for row in pq.read_table(one / "steps.parquet").to_pylist()}
    assert {step: steps[step]["training/chosen_tokens"] for step in (1, 2)} == dict(chosen)
    assert all(0 < chosen[step] < whole[step] for step in (1, 2))

    first, now = (
        resolve("pocket-sql"),
        answerers(load_config("cpu", None, [f"roles.check_query.policy={one}"])),
    )
    assert (
        now["check_query"].name == f"{one.name}, step 2"
    )  # a run's checkpoint is a policy like any other
    validated = [
        row
        for row in pq.read_table(one / "transitions.parquet").to_pylist()
        if row["phase"] == "val"
    ]
    last = [row for row in validated if row["step"] == 2]
    greedy_answers_are_of(first, [row for row in last if row["role"] == "check_query"])
    greedy_answers_are_of(
        now["check_query"].folder, [row for row in last if row["role"] != "check_query"]
    )


def test_a_policy_that_lacks_weights_is_not_trained(
    tmp_path: Path, shared: Mapping[str, str]
) -> None:
    log = tmp_path / "log"
    absent = without_a_tensor(tmp_path / "partial")
    policy = ("--set", f"policy.path={tmp_path / 'partial'}", "--runs-dir", tmp_path / "runs")
    process = start("--plugin", "reference_sql", *policy, *SMALL, log=log, variables=shared)
    assert process.wait(600) == 1, log.read_text()[-3000:]
    (run,) = (tmp_path / "runs").iterdir()
    record = json.loads((run / "run.json").read_text())
    reason = (
        f"{tmp_path / 'partial'} lacks 1 of the weights of its architecture, such as {absent}. "
        "Restore the others, or name a complete policy"
    )
    assert record["status"] == "failed" and reason in record["reason"], record["reason"]
    assert reason in " ".join(log.read_text().split())
    assert not any(run.glob("logs/*.jsonl")), "nothing was trained or measured"


@pytest.mark.parametrize("victim", ["VerlPolicyServer", "AgentLoopWorkerTQ"])
def test_a_dead_actor_fails_the_run_cleanly_and_scores_nothing_zero(
    tmp_path: Path,
    small_disk: Callable[[str], Path],
    fill: Callable[..., Path],
    shared: Mapping[str, str],
    victim: str,
) -> None:
    runs, log = small_disk("400m"), tmp_path / "log"
    arguments = ("--plugin", "reference_sql", "--steps", "3", "--runs-dir", runs, *SMALL)
    process = start(*arguments, log=log, variables=shared)

    def found() -> list[psutil.Process]:
        if not any(file.stat().st_size for file in runs.glob("*/logs/episodes-*.jsonl")):
            return []  # rollouts are under way from here on
        return [process for process in processes_of(runs) if victim in " ".join(process.cmdline())]

    for one in wait_for(found, process, log):
        one.kill()
    began = time.monotonic()
    assert process.wait(600) == 1, log.read_text()[-3000:]
    assert time.monotonic() - began < 60, "longer than a rollout may take"
    assert all_gone(runs, 10), of_this_test(runs)
    (run,) = (path for path in runs.iterdir() if path.is_dir())
    record = json.loads((run / "run.json").read_text())
    assert record["status"] == "failed" and record["reason"]
    named = "policy server" if victim == "VerlPolicyServer" else "actor"
    assert f"{named} {victim}" in record["reason"], record["reason"]
    assert "Traceback" not in log.read_text()
    for row in pq.read_table(run / "episodes.parquet").to_pylist():
        assert (row["reward"] is None) == (row["outcome"] != "ok"), row

    fill(runs, leave=2**20)
    refused = start("--resume", run, log=log)
    assert refused.wait(120) == 2 and "1 MiB of disk left and the run needs" in log.read_text(), (
        log.read_text()
    )
    assert json.loads((run / "run.json").read_text()) == record


@pytest.mark.parametrize(("number", "alone"), [(signal.SIGTERM, True), (signal.SIGINT, False)])
def test_an_interrupted_training_ends_within_seconds_and_says_so(
    tmp_path: Path, shared: Mapping[str, str], number: int, alone: bool
) -> None:
    runs, log = tmp_path / "runs", tmp_path / "log"
    runs.mkdir()
    arguments = ("--plugin", "reference_sql", "--steps", "3", "--runs-dir", runs, *SMALL)
    process = start(*arguments, log=log, variables=None if alone else shared)
    wait_for(lambda: any("raylet" in command for command in of_this_test(runs)), process, log)
    # The driver has a child with the same command line. Its id is smaller after ids wrap.
    driver = next(one.pid for one in processes_of(runs) if "harness_verl.driver" in one.cmdline())
    group = os.getpgid(driver)
    wait_for(lambda: any("Agent" in name for name in names_of_group(group)), process, log)
    began = time.monotonic()
    process.send_signal(number)
    assert process.wait(60) == 130, log.read_text()[-3000:]
    assert time.monotonic() - began < 20
    assert all_gone(runs, 5), of_this_test(runs)
    assert not names_of_group(group)  # Ray's agents have written a title over their mark
    (run,) = runs.iterdir()
    assert json.loads((run / "run.json").read_text())["status"] == "interrupted"
    message = "harness: interrupted: no checkpoint was saved yet (train.save_every). Start over: harness train --resume"
    assert log.read_text().splitlines()[-1] == f"{message} {run}"

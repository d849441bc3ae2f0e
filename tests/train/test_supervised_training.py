"""Supervised trainings through the command line, and their token ids against those of real rollouts."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from harness.compare.measures import measure
from harness.compare.views import views
from harness.config import load_config
from harness.policies import resolve
from harness.rollout.session import Session
from harness.runs.folder import RunFolder
from harness.runs.reading import read_run
from harness_verl.taught import Teacher

from . import conftest
from .test_training import answers, start, weights

pytestmark = [pytest.mark.train, pytest.mark.timeout(900)]

SUPERVISED = ("--set", "train.algorithm=supervised", "--set", "task.train_limit=4")
"""Every step trains the same four tasks."""


def first_calls(run: Path) -> dict[str, list[dict[str, Any]]]:
    """The first calls of every task's training rollouts, as they were recorded."""
    tasks = {}
    for episode in pq.read_table(run / "episodes.parquet").to_pylist():
        if episode["phase"] == "train":
            tasks[episode["attempt_id"]] = episode["task_id"]
    calls: dict[str, list[dict[str, Any]]] = {}
    for call in pq.read_table(run / "transitions.parquet").to_pylist():
        if call["attempt_id"] in tasks and call["index"] == 0:
            calls.setdefault(tasks[call["attempt_id"]], []).append(call)
    return calls


def test_token_ids_are_those_of_a_rollout(tmp_path: Path, left_alone: Callable[[], Path]) -> None:
    """Prompts of all tasks, and replies where the policy itself writes what is taught."""
    config = load_config("cpu", None, ["train.algorithm=supervised"], agent="reference_sql")
    nothing: Any = None
    session = Session(config, "policy", nothing, nothing, RunFolder.create(tmp_path, "x"))
    teacher = Teacher(config, resolve("pocket-sql"))
    recorded = first_calls(left_alone())
    same_replies = 0
    for task_id, calls in recorded.items():
        taught = session.taught(task_id)
        assert taught is not None
        row = teacher.row(taught)
        for call in calls:
            assert row is not None and row.prompt_ids == call["prompt_ids"]
            assert taught.role == call["role"]
            if taught.reply == call["response_text"]:
                same_replies += 1
                assert row.response_ids == call["response_ids"]
    assert len(recorded) == 8 and same_replies > 0


def trained(runs: Path, shared: Mapping[str, str], *arguments: str) -> Path:
    log = runs.with_suffix(".log")
    process = start(*arguments, "--runs-dir", runs, log=log, variables=shared)
    assert process.wait(600) == 0, log.read_text()[-3000:]
    (run,) = runs.iterdir()
    return run


def test_a_training_without_rollouts_learns_and_resumes(
    tmp_path: Path, shared: Mapping[str, str]
) -> None:
    agent = ("--agent", "reference_sql")
    whole = trained(tmp_path / "whole", shared, *agent, *conftest.TWO_STEPS, *SUPERVISED)
    episodes = pq.read_table(whole / "episodes.parquet").to_pylist()
    assert [(row["phase"], row["step"]) for row in episodes] == [
        ("val", step) for step in (0, 1, 2) for _ in range(8)
    ]
    steps = {row["step"]: row for row in pq.read_table(whole / "steps.parquet").to_pylist()}
    # Both steps train the same batch.
    assert 0 < steps[2]["cross_entropy"] < steps[1]["cross_entropy"]
    for step in (1, 2):
        assert steps[step]["taught_calls"] == 4 and steps[step]["left_out"] == 0
        assert steps[step]["gradient_norm"] > 0
    invented = [name for name in steps[1] if name.startswith(("critic/", "rollout/", "rollout_"))]
    assert not invented

    record = json.loads((whole / "run.json").read_text())
    assert record["identity"]["train"]["algorithm"] == "supervised"
    result = record["result"]
    assert (result["steps"], result["signal"], result["no_signal"]) == (2, None, "")
    assert result["rollout_probs_diff_max"] is None
    read = read_run(whole)
    figures = measure(read)
    tokens = [int(steps[step]["taught_tokens"]) for step in (1, 2)]
    assert figures["trained_tokens"] == sum(tokens) and figures["trained_transitions"] == 8
    assert (figures["optimizer_steps"], figures["signal"]) == (2, None)
    assert figures["shares"]["rollout"] == 0
    of_tokens = views({"supervised": [read]}, "supervised")[2]
    assert of_tokens["budget"] == sum(tokens)

    runs = tmp_path / "resumed"
    stopped = trained(runs, shared, *agent, *conftest.TWO_STEPS, *SUPERVISED, "--steps", "1")
    log = tmp_path / "resume.log"
    process = start("--resume", stopped, "--set", "train.steps=2", log=log, variables=shared)
    assert process.wait(600) == 0, log.read_text()[-3000:]
    assert answers(stopped) == answers(whole)
    ours, theirs = weights(stopped), weights(whole)
    assert ours.keys() == theirs.keys() and all(ours[name].equal(theirs[name]) for name in ours)


def test_a_training_that_leaves_every_task_out_learns_nothing(
    tmp_path: Path, shared: Mapping[str, str]
) -> None:
    arguments = ("--agent", "reference_sql", *conftest.TWO_STEPS, *SUPERVISED)
    no_checkpoint = ("--set", "train.keep_checkpoints=0")
    too_short = ("--set", "sampling.max_response_tokens=2")
    run = trained(tmp_path / "runs", shared, *arguments, *too_short, *no_checkpoint)
    result = json.loads((run / "run.json").read_text())["result"]
    assert result["steps"] == 2 and result["no_signal"].startswith("All tasks of the 2 steps")
    assert measure(read_run(run))["no_signal"] == result["no_signal"]
    log = (tmp_path / "runs.log").read_text()
    assert "nothing could be learned: All tasks" in log and "to try: larger sampling." in log
    # verl saved the last step, and harness removed it.
    assert not [*run.rglob("global_step_*"), *run.rglob("*.pt")]
    assert "harness report" in log and "harness eval" not in log

"""Training, resuming elsewhere, LoRA, rollouts beside training and export on one CUDA device: `make test-gpu`.

Two trainings serve most checks (`-k lora`, and `-k "not lora and not beside"`), a third has its rollouts beside it.
`HARNESS_TEST_GPU_ON=cpu` runs the same tests without a GPU or vLLM, for who changes them.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from harness.config import resolve_device

ON = os.environ.get("HARNESS_TEST_GPU_ON", "cuda")
ENGINES = ["vllm", "transformers"] if ON == "cuda" else ["transformers"]
MEAN_DIFFERENCE = 5e-4
"""Rollout against trainer, on the probability of a token; bf16 alone gives 1e-4, weights of a step ago more."""

LACKING = ON == "cuda" and (
    (resolve_device("auto") != "cuda" and "needs a CUDA device")
    or (find_spec("vllm") is None and "needs vLLM (extra gpu)")
)
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.timeout(900),
    pytest.mark.skipif(bool(LACKING), reason=str(LACKING)),
]

SMALL = [
    "train.batch_size=4",
    "task.val_limit=16",
    "train.val_every=0",
    "train.save_every=1",
    "rollout.runners=1",
]


def harness(*arguments: str | Path) -> list[str]:
    return [sys.executable, "-m", "harness", *map(str, arguments)]


def training(*arguments: str | Path) -> list[str]:
    device = (
        [] if ON == "cuda" else ["--set", f"device={ON}"]
    )  # none named: harness must find the GPU by itself
    settings = [part for setting in SMALL for part in ("--set", setting)]
    return harness("train", *settings, *device, *arguments)


def finish(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def data_order(run: Path) -> str:
    return hashlib.sha256((run / "data" / "train.parquet").read_bytes()).hexdigest()


def steps_of(run: Path) -> list[dict[str, Any]]:
    rows = pq.read_table(run / "steps.parquet").to_pylist()
    return [row for row in rows if row.get("timing_s/step") is not None]


@pytest.fixture(scope="module")
def resumed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any], str]:
    """A training that was interrupted after a checkpoint, moved and finished; its record then, its data order now."""
    root = tmp_path_factory.mktemp("gpu")
    with (root / "log").open("wb") as log:
        command = training("--plugin", "langgraph_sql", "--steps", "3", "--runs-dir", root / "here")
        process = subprocess.Popen(command, stdout=log, stderr=log)
        deadline = time.monotonic() + 800
        while not list(root.glob("here/*/checkpoints/latest_checkpointed_iteration.txt")):
            assert process.poll() is None and time.monotonic() < deadline, (
                root / "log"
            ).read_text()[-3000:]
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130, (root / "log").read_text()[-3000:]
    (here,) = (root / "here").iterdir()
    record, order = json.loads((here / "run.json").read_text()), data_order(here)
    run = root / "elsewhere" / here.name
    shutil.move(here, run)
    shutil.rmtree(root / "here")
    finish(harness("train", "--resume", run))
    return run, record, order


@pytest.fixture(scope="module")
def adapted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A training of adapters, fast enough that weights of a step ago would show."""
    root = tmp_path_factory.mktemp("lora")
    options = [
        "--set",
        "train.lora_rank=8",
        "--set",
        "train.learning_rate=1e-2",
        "--trace-start",
        str(root / "trace"),
    ]
    finish(
        training("--plugin", "reference_sql", "--steps", "2", *options, "--runs-dir", root / "runs")
    )
    (run,) = (root / "runs").iterdir()
    return run


def test_the_device_is_found_and_its_policy_served(
    resumed: tuple[Path, dict[str, Any], str],
) -> None:
    record = json.loads((resumed[0] / "run.json").read_text())
    assert record["device"] == ON
    if ON == "cuda":
        assert record["hardware"]["gpus"] and record["versions"]["vllm"]
        assert "name: vllm" in (resumed[0] / "data" / "verl.yaml").read_text()


def test_a_training_resumes_where_it_was_moved_to(
    resumed: tuple[Path, dict[str, Any], str],
) -> None:
    run, before, order = resumed
    record = json.loads((run / "run.json").read_text())
    assert before["status"] == "interrupted"
    assert (record["status"], record["result"]["steps"], len(record["launches"])) == (
        "finished",
        3,
        2,
    )
    assert record["identity"] == before["identity"] and data_order(run) == order
    updated = [
        row["step"]
        for row in pq.read_table(run / "steps.parquet").to_pylist()
        if row["actor/grad_norm"]
    ]
    assert updated == [
        1,
        2,
        3,
    ]  # also where a launch was interrupted after a checkpoint and before a step's end
    assert (
        record["result"]["val_accuracy_initial"] is not None
        and record["result"]["val_accuracy_final"] is not None
    )


def test_every_update_reaches_the_policy_server(resumed: tuple[Path, dict[str, Any], str]) -> None:
    for row in steps_of(resumed[0]):
        assert row["training/rollout_probs_diff_mean"] < MEAN_DIFFERENCE
        assert (
            row["training/rollout_probs_diff_max"] < 0.3
        )  # bf16 against fp32 weights, one token's worst case


def test_every_update_of_lora_adapters_reaches_the_policy_server(adapted: Path) -> None:
    assert json.loads((adapted / "run.json").read_text())["result"]["steps"] == 2
    for row in steps_of(adapted):
        assert row["training/rollout_probs_diff_mean"] < MEAN_DIFFERENCE


@pytest.mark.parametrize("engine", ENGINES)
def test_an_export_answers_as_the_trained_policy(
    resumed: tuple[Path, dict[str, Any], str], tmp_path: Path, engine: str
) -> None:
    exported(resumed[0], tmp_path / "model", engine)


def test_rollouts_beside_training_are_all_scored(tmp_path: Path) -> None:
    options = [
        "--set",
        "verl.trainer.v1.trainer_mode=colocate_async",
        "--set",
        "task.val_limit=240",
    ]
    finish(training("--plugin", "reference_sql", "--steps", "3", *options, "--runs-dir", tmp_path))
    (run,) = tmp_path.iterdir()
    rows = pq.read_table(run / "episodes.parquet").to_pylist()
    assert {row["outcome"] for row in rows} == {"ok"}
    assert sum(row["phase"] == "val" for row in rows) == 2 * 240


def test_workers_of_a_lora_training_and_what_they_spawn_are_forks(adapted: Path) -> None:
    events = json.loads((adapted.parent.parent / "trace").read_text())
    names = [event["args"]["name"] for event in events if event["name"] == "process_name"]
    assert "server of forks" in names and names.count("Ray's worker") > 4
    assert ("spawned by a worker" in names) is (ON == "cuda")  # vLLM's engine and its worker


@pytest.mark.parametrize("engine", ENGINES)
def test_a_lora_export_answers_as_the_trained_policy(
    adapted: Path, tmp_path: Path, engine: str
) -> None:
    exported(adapted, tmp_path / "model", engine)
    assert not (tmp_path / "model" / "lora_adapter").exists()


def exported(run: Path, folder: Path, engine: str) -> None:
    command = harness("export", run, "--to", folder, "--verify", "16", "--engine", engine, "--json")
    written = json.loads(finish(command))
    print(json.dumps(written["verified"]))  # noqa: T201 - shown with `-rP`
    assert written["hash"] != written["initial_hash"]
    assert written["verified"]["engine"] == engine and written["verified"]["prompts"] == 16
    assert written["verified"]["identical"] >= 0.5
    assert json.loads((folder / "export.json").read_text()) == written

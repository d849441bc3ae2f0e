"""A published run, in the files of real trackers, read back by their own readers."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from harness.runs.reading import Run, read_run
from harness_trackers.contents import contents

ROOT = Path(__file__).resolve().parents[3]
RUN = ROOT / "results" / "gpu-probe" / "seed0"


@pytest.fixture(scope="module")
def run() -> Run:
    return read_run(RUN)


def test_what_a_tracker_is_given_has_no_gold_and_no_tokens(run: Run) -> None:
    exported = contents(run)
    assert exported.curves["val/reward"][0] < exported.curves["val/reward"][40]
    assert exported.config["train.algorithm"] == "grpo" and exported.figures["status"] == "finished"
    assert 1 < len(exported.episodes["question"]) <= 64
    assert {"question", "reward"} <= exported.episodes.keys() and not {
        "gold",
        "query",
    } & exported.episodes.keys()


def test_tensorboard_reads_curves_and_texts(run: Run, tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    from harness_trackers.tensorboard import export

    assert export(run, str(tmp_path)) == f"tensorboard --logdir {tmp_path}"
    events = EventAccumulator(str(tmp_path / run.id), size_guidance={"scalars": 0, "tensors": 0})
    events.Reload()
    exported = contents(run)
    for name, values in exported.curves.items():
        assert {event.step: event.value for event in events.Scalars(name)} == pytest.approx(
            values
        ), name
    (sample,) = events.Tensors("episodes")
    assert exported.episodes["task_id"][0] in sample.tensor_proto.string_val[0].decode()


def test_mlflow_reads_metrics_parameters_and_files(run: Run, tmp_path: Path) -> None:
    from harness_trackers.mlflow import export

    place = export(run, str(tmp_path / "mlruns"))
    from mlflow import MlflowClient

    client = MlflowClient((tmp_path / "mlruns").as_uri())
    found = client.get_run(place.rpartition(" ")[2])
    assert found.info.status == "FINISHED" and found.info.run_name == run.id
    exported = contents(run)
    history = client.get_metric_history(found.info.run_id, "val/reward")
    assert {one.step: one.value for one in history} == pytest.approx(exported.curves["val/reward"])
    assert found.data.params["train.algorithm"] == "grpo"
    episodes: dict[str, Any] = json.loads(
        Path(client.download_artifacts(found.info.run_id, "episodes.json")).read_text(
            encoding="utf-8"
        )
    )
    assert episodes == exported.episodes


@pytest.mark.slow
def test_wandb_writes_a_run_that_it_can_sync(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "harness",
        "runs",
        "export",
        str(RUN),
        "--to",
        "wandb",
        "--where",
        str(tmp_path),
    ]
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "WANDB_MODE": "offline"}
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env=environment, timeout=300
    )
    assert done.returncode == 0, done.stderr
    folder = Path(done.stdout.split("wandb sync ")[1].strip().replace("\n", ""))
    assert folder.is_dir()
    (file,) = folder.glob("*.wandb")
    text = file.read_bytes()
    assert b"val/reward" in text and b"grpo" in text and b"val_accuracy_final" in text


@pytest.mark.slow
def test_swanlab_writes_a_run_that_it_can_sync(run: Run, tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "harness",
        "runs",
        "export",
        str(RUN),
        "--to",
        "swanlab",
        "--where",
        str(tmp_path),
    ]
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "COLUMNS": "1000"}
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env=environment, timeout=300
    )
    assert done.returncode == 0, done.stderr
    folder = Path(done.stdout.split("swanlab sync ")[1].strip())
    from swanlab.data.porter.datastore import DataStore

    store = DataStore()
    store.open_for_scan(str(folder / "backup.swanlab"))
    kept: dict[str, dict[int, float]] = {}
    for record in map(json.loads, store):
        if record["model_type"] == "Scalar":
            kept.setdefault(record["data"]["key"], {})[record["data"]["step"]] = record["data"][
                "metric"
            ]["data"]
    exported = contents(run)
    assert kept.keys() == exported.curves.keys()
    for name, values in exported.curves.items():
        assert kept[name] == pytest.approx(values), name
    assert "train.algorithm" in (folder / "files" / "config.yaml").read_text(encoding="utf-8")
    (table,) = folder.glob("media/*/echarts-*.json")
    assert exported.episodes["task_id"][0] in table.read_text(encoding="utf-8")


def test_an_unknown_tracker_is_told_with_those_there_are() -> None:
    command = [sys.executable, "-m", "harness", "runs", "export", str(RUN), "--to", "tensorbord"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert (
        done.returncode == 2
        and "did you mean 'tensorboard'? One of: hf, mlflow, swanlab, tensorboard, wandb"
        in done.stderr
    )

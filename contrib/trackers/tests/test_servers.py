"""Trackers with servers: a real one of MLflow, and addresses of both at which there is none."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from harness.runs.folder import RunFolder
from harness.runs.reading import read_run
from harness_trackers.contents import contents
from harness_trackers.reach import ADDRESSES, one_line, silent, without_keys

ROOT = Path(__file__).resolve().parents[3]
RUN = ROOT / "results" / "gpu-probe" / "seed0"
KEY = "0123456789abcdef" * 2 + "01234567"
SMALL = (
    *("--agent", "reference_sql", "--preset", "cpu", "--steps", "4", "--set", "train.batch_size=4"),
    *(
        "--set",
        "task.val_limit=8",
        "--set",
        "train.val_every=0",
        "--set",
        "train.loggers=[wandb, mlflow, swanlab]",
    ),
)


def harness(*arguments: str | Path, **variables: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "harness", *map(str, arguments)]
    environment = {"PATH": "/usr/bin:/bin", "COLUMNS": "1000", **variables}
    return subprocess.run(
        command, capture_output=True, text=True, check=False, env=environment, timeout=300
    )


class Foreign(BaseHTTPRequestHandler):
    """A server that is no tracker's."""

    def _refuse(self) -> None:
        self.send_error(404)

    do_GET = do_POST = do_PUT = _refuse

    def log_message(self, *arguments: Any) -> None:
        """Nothing."""


@pytest.fixture
def foreign() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Foreign) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture
def mute() -> Iterator[str]:
    """An address that takes connections and says nothing."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"


@pytest.mark.slow
def test_a_server_of_mlflow_has_curves_configuration_figures_and_the_sample(
    start_mlflow: Callable[[], Any],
) -> None:
    from mlflow import MlflowClient

    server = start_mlflow()
    done = harness("runs", "export", RUN, "--to", "mlflow", "--where", server.url)
    assert done.returncode == 0, done.stderr
    exported, client = contents(read_run(RUN)), MlflowClient(server.url)
    kept = client.get_run(done.stdout.split()[-1])
    assert kept.info.status == "FINISHED" and kept.data.params.keys() == exported.config.keys()
    for name in ("val/reward", "entropy", "rollout/reward"):
        history = client.get_metric_history(kept.info.run_id, name)
        assert {one.step: one.value for one in history} == pytest.approx(exported.curves[name]), (
            name
        )
    assert kept.data.metrics["final/val_accuracy_final"] == exported.figures["val_accuracy_final"]
    files = {one.path for one in client.list_artifacts(kept.info.run_id)}
    assert files == {"episodes.json", "figures.json"}
    for name, expected in (
        ("episodes.json", exported.episodes),
        ("figures.json", exported.figures),
    ):
        path = Path(client.download_artifacts(kept.info.run_id, name))
        assert json.loads(path.read_text(encoding="utf-8")) == expected


@pytest.mark.slow
@pytest.mark.parametrize("tracker", sorted(ADDRESSES))
def test_an_address_that_is_none_is_one_line_at_once(
    tracker: str, mute: str, tmp_path: Path
) -> None:
    for address, fault in (
        (
            "http://127.0.0.1:9",
            "http://127.0.0.1:9 does not answer: [Errno 111] Connection refused",
        ),
        (
            "http://me:secret@127.0.0.1:9/a",
            "http://127.0.0.1:9/a does not answer: [Errno 111] Connection refused",
        ),
        (mute, f"{mute} did not answer within 5 s"),
    ):
        variables = {ADDRESSES[tracker]: address, "WANDB_API_KEY": KEY, "HOME": str(tmp_path)}
        done = harness("runs", "export", RUN, "--to", tracker, **variables)
        assert done.returncode == 1 and fault in done.stderr, done.stderr
        assert (
            done.stderr.count("\n") == 1 and "secret" not in done.stderr and KEY not in done.stderr
        )


@pytest.mark.slow
def test_a_server_that_is_not_wandbs_is_one_line(foreign: str, tmp_path: Path) -> None:
    variables = {
        "WANDB_BASE_URL": foreign,
        "WANDB_API_KEY": KEY,
        "HOME": str(tmp_path),
        "WANDB_SILENT": "true",
    }
    done = harness(
        "runs", "export", RUN, "--to", "wandb", "--where", tmp_path / "files", **variables
    )
    assert done.returncode == 1, done.stdout
    last = done.stderr.splitlines()[-1]
    assert last.startswith("harness: Weights & Biases: ") and "404" in last
    files = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    assert not any(KEY.encode() in data for data in files)


def test_addresses_are_shown_without_keys() -> None:
    assert without_keys("https://me:key@host:1/path@2") == "https://host:1/path@2"
    assert without_keys("mlruns@2") == "mlruns@2"
    assert (
        without_keys("me:key@host:8080") == "host:8080"
        and without_keys("http://me:k/ey@host/a") == "http://host/a"
    )
    assert (
        one_line(OSError("API request to http://me:k/ey@host/a failed"))
        == "API request to http://host/a failed"
    )
    assert silent("nonsense") == "nonsense is no address; write http://HOST:PORT"


@pytest.mark.train
@pytest.mark.timeout(900)
def test_a_training_goes_on_without_a_wrong_server_and_one_that_is_killed(
    start_mlflow: Callable[[], Any], foreign: str, tmp_path: Path
) -> None:
    from mlflow import MlflowClient

    server = start_mlflow()
    variables = os.environ | {
        "MLFLOW_TRACKING_URI": server.url,
        "WANDB_BASE_URL": foreign,
        "WANDB_API_KEY": KEY,
        "SWANLAB_MODE": "offline",
        "HOME": str(tmp_path),
        "COLUMNS": "1000",
        "HARNESS_CACHE_DIR": str(tmp_path / "cache"),
    }
    with (tmp_path / "log").open("wb") as log:
        command = [
            sys.executable,
            "-m",
            "harness",
            "train",
            *SMALL,
            "--runs-dir",
            str(tmp_path / "runs"),
        ]
        training = subprocess.Popen(command, stdout=log, stderr=log, env=variables, cwd=tmp_path)
    try:
        client = MlflowClient(server.url)

        def first_step() -> bool:
            found = client.search_runs([one.experiment_id for one in client.search_experiments()])
            if not any(run.data.metrics.get("training/global_step", 0) >= 1 for run in found):
                return False
            (run,) = found  # one run, which has the configuration, too, and is not ended
            assert run.data.params and run.info.status == "RUNNING"
            return True

        deadline = time.monotonic() + 600
        while not first_step():
            assert training.poll() is None and time.monotonic() < deadline, (
                tmp_path / "log"
            ).read_text()[-3000:]
            time.sleep(0.1)
        server.kill()
        assert training.wait(600) == 0, (tmp_path / "log").read_text()[-3000:]
    finally:
        training.kill()
    lines = (tmp_path / "log").read_text(encoding="utf-8").splitlines()
    warnings = [
        line.partition(" ERROR harness_verl.run: ")[2]
        for line in lines
        if "continues without it" in line
    ]
    assert sorted(line.split(":")[0] for line in warnings) == ["mlflow", "wandb"], lines
    assert "afterwards: harness runs export RUN --to mlflow" in min(warnings)
    (path,) = (tmp_path / "runs").iterdir()
    run = read_run(path)
    assert run.finished and run.steps["step"].to_list() == [0, 1, 2, 3, 4]
    (kept,) = path.glob("swanlog/*/backup.swanlab")
    assert b"training/global_step" in kept.read_bytes()
    assert not any(KEY.encode() in file.read_bytes() for file in path.rglob("*") if file.is_file())
    server.start()
    done = harness("runs", "export", path, "--to", "mlflow", "--where", server.url)
    assert done.returncode == 0, done.stderr
    history = client.get_metric_history(done.stdout.split()[-1], "training/global_step")
    assert [one.value for one in history] == [1, 2, 3, 4]
    assert RunFolder(path).read()["status"] == "finished"

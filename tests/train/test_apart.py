"""A real training with its sides apart, each killed once, and resumed at another store: it learns from the rewards of
one that was left alone."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from harness.results.folder import RunFolder

pytestmark = [pytest.mark.train, pytest.mark.timeout(1200)]

SMALL = (
    *("--agent", "reference_sql", "--preset", "cpu", "--steps", "4", "--set", "train.batch_size=4"),
    *("--set", "task.val_limit=8", "--set", "train.val_every=0", "--set", "train.save_every=1"),
)


def rows(run: Path) -> dict[tuple[Any, ...], tuple[Any, ...]]:
    """What counts of each rollout of a training."""
    found = [
        (
            (row["phase"], row["step"], row["task_id"], row["session"]),
            (row["outcome"], row["reward"], row["used_reward"], row["answer"]),
        )
        for row in RunFolder.open(run).rows("episodes")
    ]
    assert len(found) == len(dict(found)), "a rollout has several rows"
    return dict(found)


def test_each_side_is_killed_and_the_training_is_the_one_that_was_left_alone(tmp_path: Path) -> None:
    variables = os.environ | {"HARNESS_CACHE_DIR": str(tmp_path / "cache"), "HARNESS_TEST_SIDES": str(tmp_path)}
    started: list[subprocess.Popen[bytes]] = []

    def start(*arguments: str | Path, log: str) -> subprocess.Popen[bytes]:
        with (tmp_path / log).open("ab") as output:
            command = [sys.executable, "-m", "harness", *map(str, arguments)]
            process = subprocess.Popen(command, stdout=output, stderr=output, env=variables, cwd=tmp_path)
        started.append(process)
        return process

    def said(log: str) -> str:
        return (tmp_path / log).read_text() if (tmp_path / log).exists() else ""

    def wait_for(condition: Callable[[], Any], limit_s: float = 400) -> Any:
        deadline = time.monotonic() + limit_s
        while time.monotonic() < deadline:
            if found := condition():
                return found
            time.sleep(0.05)
        raise AssertionError(f"not in {limit_s} s: {said('train')[-3000:]}")

    try:
        alone = start("train", *SMALL, "--runs-dir", tmp_path / "left-alone", log="alone")
        assert alone.wait(400) == 0, said("alone")[-3000:]
        store = start("store", "--port", "0", log="store")
        url = wait_for(lambda: said("store")).split()[1]
        runner = start("runner", "--store", url, log="runner")
        apart = (*SMALL, "--set", "rollout.runners=0", "--store", url, "--runs-dir", tmp_path / "runs")
        trainer = start("train", *apart, log="train")
        run = wait_for(lambda: next((tmp_path / "runs").glob("*"), None))

        def trained(step: int) -> bool:
            return any(row["phase"] == "train" and row["step"] >= step for row in RunFolder(run).rows("episodes"))

        wait_for(lambda: (run / "run.json").exists() and trained(1))
        store.kill()
        store.wait()
        store = start("store", "--port", url.rpartition(":")[2], log="store")
        wait_for(lambda: trained(2))
        trainer.send_signal(signal.SIGKILL)
        trainer.wait()
        runner.kill()
        runner.wait()
        runner = start("runner", "--store", url, log="runner")  # before the trainer is back
        trainer = start("train", "--resume", run, "--store", url, log="train")
        wait_for(lambda: trained(3))
        for process in (trainer, store, runner):
            process.kill()
            process.wait()
        store = start("store", "--port", "0", log="other")
        other = wait_for(lambda: said("other")).split()[1]
        assert other != url
        runner = start("runner", "--store", other, log="runner")
        assert start("train", "--resume", run, "--store", other, log="train").wait(400) == 0, said("train")[-3000:]
        url = other
        assert rows(run) == rows(next((tmp_path / "left-alone").iterdir()))
        record = json.loads((run / "run.json").read_text())
        assert record["status"] == "finished" and record["result"]["steps"] == 4
        shown = {"Authorization": f"Bearer {(tmp_path / 'cache' / 'store.key').read_text().strip()}"}
        assert httpx.get(f"{url}/runs", headers=shown, trust_env=False).json() == {"runs": []}
        assert store.poll() is None
    finally:
        for process in started:
            process.terminate()
        for process in started:
            process.wait(60)
    wait_for(lambda: not left(tmp_path), 60)


def left(folder: Path) -> list[psutil.Process]:
    """Processes that any of ours started."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("HARNESS_TEST_SIDES") == str(folder):
                found.append(process)
        except psutil.Error:
            continue
    return [one for one in found if one.is_running() and one.status() != psutil.STATUS_ZOMBIE]

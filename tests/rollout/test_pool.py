"""Workers that are dead or stuck are noticed; those that only start are not."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.rollout import pool as module
from harness.rollout.pool import WorkerPool
from harness.rollout.worker import WorkerSettings


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[WorkerPool]:
    """Two workers that never come to import anything."""
    sleeper = tmp_path / "python"
    sleeper.write_text(f"#!/bin/sh\nexec {sys.executable} -c 'import time; time.sleep(60)'\n")
    sleeper.chmod(0o755)

    def settings(number: int, heartbeat: Path) -> WorkerSettings:
        return WorkerSettings(
            "reference_sql", number, "http://s", "http://g", "key", 1, str(heartbeat)
        )

    made = WorkerPool(2, settings, tmp_path, timeout_s=1.0, python=str(sleeper))
    yield made
    made.stop(grace_s=0.5)


def test_a_heartbeat_of_a_killed_launch_is_not_taken_for_a_worker_s(
    pool: WorkerPool, tmp_path: Path
) -> None:
    for number in range(2):
        stale = tmp_path / f".runner-{number}.alive"
        stale.touch()
        os.utime(stale, (0, time.time() - 3600))
    pool.start()
    assert [pool._problem(worker) for worker in pool._workers] == [None, None]


def test_a_worker_that_has_gone_quiet_or_never_starts_is_killed(
    pool: WorkerPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool.start()
    quiet, starting = pool._workers
    quiet.heartbeat.touch()
    assert pool._problem(quiet) is None
    quiet.since -= 40
    assert "was stuck for 40 s" in str(pool._problem(quiet)) and quiet.process.returncode == -9
    assert pool._problem(starting) is None
    monkeypatch.setattr(module, "START_S", 0.0)
    assert "was stuck" in str(pool._problem(starting))
    assert isinstance(starting.process, subprocess.Popen) and starting.process.returncode == -9


@pytest.mark.parametrize("by_s", [3600, -3600])
def test_a_clock_that_is_set_meanwhile_makes_no_worker_stuck(
    pool: WorkerPool, monkeypatch: pytest.MonkeyPatch, by_s: int
) -> None:
    pool.start()
    for worker in pool._workers[:1]:  # the other is starting
        worker.heartbeat.touch()
    assert [pool._problem(worker) for worker in pool._workers] == [None, None]
    was = time.time
    monkeypatch.setattr(time, "time", lambda: was() + by_s)
    assert [pool._problem(worker) for worker in pool._workers] == [None, None]
    os.utime(pool._workers[0].heartbeat, (0, time.time()))
    assert [pool._problem(worker) for worker in pool._workers] == [None, None]

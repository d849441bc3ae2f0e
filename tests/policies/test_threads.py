"""How many threads a policy computes with, as the environment states it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from harness.errors import EnvironmentProblem
from harness.util.threads import computing_threads
from harness_policy_server.serve import served


@pytest.mark.parametrize(("stated", "threads"), [("3", 3), (" 2 ", 2), ("4,2", 4)])
def test_the_stated_number_counts(
    stated: str, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", stated)
    assert computing_threads() == threads


@pytest.mark.parametrize("stated", [None, ""])
def test_without_a_number_the_cores_count(
    stated: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if stated is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", stated)
    assert computing_threads() == len(os.sched_getaffinity(0))


@pytest.mark.parametrize("stated", ["abc", "0", "-2", "1.5", "²"])
def test_what_is_no_number_of_threads_is_named_before_a_server_starts(
    stated: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", stated)
    with (
        pytest.raises(EnvironmentProblem, match=f"OMP_NUM_THREADS is '{stated}', not a number"),
        served("pocket-sql", "cpu", 512, tmp_path / "log.txt"),
    ):
        pass
    assert not (tmp_path / "log.txt").exists()

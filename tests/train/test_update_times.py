"""The parts of an update; tests/train/test_training.py has those of a real one."""

from __future__ import annotations

import pytest

from harness_verl import update_times


def test_a_part_lasts_until_it_first_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([10.0, 10.5, 12.5])
    monkeypatch.setattr(update_times, "perf_counter", lambda: next(clock))
    times = update_times.UpdateTimes()
    times.end("divide")
    times.end("divide")  # of the second pass
    times.end("passes")
    assert times.metrics() == {"update_divide_s": [0.5], "update_passes_s": [2.0]}


def test_verls_means_become_seconds_of_a_training_step() -> None:
    metrics = {"actor/update_passes_s": 0.5, "actor/grad_norm": 1.0}
    update_times.to_step(metrics, 4)
    assert metrics == {"timing_s/update_passes": 2.0, "actor/grad_norm": 1.0}

"""The step table from a record, and which tokens its limits replay."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from datetime import datetime
from pathlib import Path
from typing import Any

import polars as pl
import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def gpu_step(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("gpu_step")


@pytest.fixture
def gpu_samples(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("gpu_samples")


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A record of three steps of two rollouts, two calls each; step 3 is the slowest."""
    steps = [{"step": 0}]
    episodes, transitions = [], []
    for step, gen in ((1, 9.0), (2, 1.0), (3, 3.0), (4, 2.0)):
        steps.append(
            {
                "step": step,
                "timing_s/step": gen + 5,
                "timing_s/gen": gen,
                "timing_s/update_actor": 3.0,
                "timing_s/update_divide": 0.25,
                "timing_s/update_passes": gen / 2,
                "timing_s/update_optimizer": 0.5,
            }
        )
        for session in range(2):
            name = f"r{step}{session}"
            began = 100.0 * step
            episodes.append(
                {
                    "phase": "train",
                    "step": step,
                    "rollout_id": name,
                    "prompt_tokens": 6,
                    "response_tokens": 4,
                }
                | {
                    "calls": 2,
                    "started_s": began,
                    "elapsed_s": gen,
                    "tool_calls": json.dumps([{"elapsed_s": 0.1}]),
                }
            )
            for index in range(2):
                transitions.append(
                    {
                        "phase": "train",
                        "step": step,
                        "rollout_id": name,
                        "index": index,
                        "trained": index == 0,
                    }
                    | {
                        "prompt_ids": [1, 2, 3],
                        "response_ids": [4] * (1 + index),
                        "gateway_s": 0.001,
                    }
                    | {"started_s": began + index * gen / 2, "latency_s": gen / 4}
                )
    pl.DataFrame(steps).write_parquet(tmp_path / "steps.parquet")
    pl.DataFrame(episodes).write_parquet(tmp_path / "episodes.parquet")
    pl.DataFrame(transitions).write_parquet(tmp_path / "transitions.parquet")
    (tmp_path / "run.json").write_text(
        json.dumps({"id": "r", "agent": "p", "hardware": {"gpus": ["H"]}})
    )
    return tmp_path


def test_phases_are_medians_after_the_first_step(gpu_step: Any, run: Path) -> None:
    table = gpu_step.phases(pl.read_parquet(run / "steps.parquet"))
    assert table["number"].to_list() == [2, 3, 4]
    assert (
        table["rollout"].median() == 2.0
        and table["update"].median() == 3.0
        and table["rest"].median() == 2.0
    )
    tokens = gpu_step.tokens(pl.read_parquet(run / "episodes.parquet"), table)
    assert tokens["sampled_tokens"] == 8 and tokens["sampled_tokens_per_s"] == 4.0


def test_the_limits_replay_the_calls_of_the_median_step(gpu_step: Any, run: Path) -> None:
    transitions = pl.read_parquet(run / "transitions.parquet")
    table = gpu_step.phases(pl.read_parquet(run / "steps.parquet"))
    assert gpu_step.chosen_step(table, transitions) == 4
    calls = gpu_step.calls_of(transitions, 4)
    assert [len(call["response_ids"]) for call in calls] == [
        1,
        1,
        2,
        2,
    ]  # in the order in which they began
    assert len(gpu_step.calls_of(transitions, 4, trained=True)) == 2


def test_the_offline_engine_is_set_up_as_the_runs(gpu_step: Any) -> None:
    rollout = {
        "dtype": "bfloat16",
        "enforce_eager": True,
        "max_num_seqs": 256,
        "tensor_model_parallel_size": 2,
        "gpu_memory_utilization": 0.2,
        "max_num_batched_tokens": None,
        "engine_kwargs": {"vllm": {"tool_call_parser": "hermes"}},
    }
    verl = {"actor_rollout_ref": {"rollout": rollout, "model": {"trust_remote_code": False}}}
    settings = gpu_step.engine_settings(verl, None)
    assert settings == {
        "dtype": "bfloat16",
        "enforce_eager": True,
        "max_num_seqs": 256,
        "tensor_parallel_size": 2,
        "gpu_memory_utilization": 0.2,
        "trust_remote_code": False,
    }
    assert gpu_step.engine_settings(verl, 0.6)["gpu_memory_utilization"] == 0.6


def test_the_table_prints_from_a_record_alone(run: Path) -> None:
    out = run / "table.json"
    command = [
        sys.executable,
        str(BENCHMARKS / "gpu_step.py"),
        str(run),
        "--profile-rollout",
        "--json",
        str(out),
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "limits left out: no data/verl.yaml" in done.stdout
    assert "update in seconds: hand_over 1.25, divide 0.25, passes 1, optimizer 0.5" in done.stdout
    profile = json.loads(out.read_text())["profile"]
    # Two calls at once for a quarter of the time, none for a quarter, twice over.
    assert profile["peak_in_flight"] == 2 and profile["mean_in_flight"] == pytest.approx(1.0)
    assert profile["idle_share"] == pytest.approx(0.5)
    assert profile["model_mean_s"] == pytest.approx(1.0) and profile[
        "tools_mean_s"
    ] == pytest.approx(0.1)


def test_records_without_parts_of_an_update_have_none(gpu_step: Any) -> None:
    steps = pl.DataFrame({"step": [2], "timing_s/update_actor": [3.0]})
    assert gpu_step.update_parts(steps, [2]) == {}


def test_idle_and_memory_come_from_samples_inside_the_rollout_phases(
    gpu_samples: Any, tmp_path: Path
) -> None:
    lines = []
    for second, busy, memory in ((0, 0, 900), (1, 0, 1024), (2, 50, 2048), (9, 100, 4096)):
        stamp = datetime.fromtimestamp(1_000_000 + second).strftime("%Y/%m/%d %H:%M:%S.000")
        lines.append(f"{stamp}, 0, {busy}, {memory}")
    (tmp_path / "smi.csv").write_text("\n".join(lines))
    samples = gpu_samples.samples_of(tmp_path / "smi.csv")
    assert gpu_samples.in_rollouts(samples, [(1_000_001, 1_000_003)]) == {
        "samples": 2,
        "idle_share": 0.5,
        "mean_utilization": 25.0,
        "max_memory_gib": 4.0,
    }


BETWEEN = [
    *((0.0, 80, 90), (0.2, 0, 20), (0.4, 0, 20), (1.0, 0, 20), (1.2, 50, 40), (1.4, 50, 79)),
    *((1.6, 100, 80), (3.4, 80, 80), (3.6, 0, 22), (3.8, 10, 90), (4.0, 0, 90)),
]
"""Seconds after a rollout phase, utilization and memory: vLLM's, the update's, vLLM's again."""


def test_the_time_between_rollouts_is_divided_by_what_memory_does(gpu_samples: Any) -> None:
    samples = []
    for begin in (100.0, 110.0):
        for second, busy, memory in BETWEEN:
            samples.append(gpu_samples.Sample(begin + second, busy, memory))
    spans = [(90.0, 100.0), (104.2, 110.0), (114.2, 120.0)]
    found = gpu_samples.between_rollouts(samples, spans)
    assert found == pytest.approx(
        {
            "phases": 2,
            "released_s": 0.2,
            "waiting_s": 1.0,
            "growing_s": 0.2,
            "computing_s": 2.2,
            "resuming_s": 0.6,
            "busy_share": (50 + 100 + 80) / 300,
        }
    )


@pytest.mark.parametrize(
    ("memory", "apart"),
    [
        ([90, 20, 20, 90], 4.0),  # the update's release was too short for a sample
        ([90, 90, 90, 90], 4.0),  # vLLM kept its memory
        ([90, 20, 80, 20], 40.0),  # a checkpoint came between
        ([], 4.0),
    ],
)
def test_phases_without_both_releases_are_left_out(
    gpu_samples: Any, memory: list[int], apart: float
) -> None:
    samples = []
    for number, value in enumerate(memory):
        samples.append(gpu_samples.Sample(100.5 + number, 50, value))
    spans = [(90.0, 100.0), (100.0 + apart, 200.0)]
    assert gpu_samples.between_rollouts(samples, spans) == {"phases": 0}

"""Two runs on one machine, each job 1 of its own Ray, see different job ids: verl names its weight sockets by them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from harness.config import load_config
from harness.rollout.processes import RUN_MARK
from harness_verl.compose import verl_settings
from harness_verl.isolation import HOOK

JOB = f"""
import os
os.environ["{RUN_MARK}"] = "a-run-7"
import ray
from harness_verl.driver import start_no_more_than_needed
start_no_more_than_needed()
ray.init(address="local", num_cpus=1, include_dashboard=False, log_to_driver=False,
         runtime_env={{"worker_process_setup_hook": "{HOOK}"}})
@ray.remote
def job():
    return ray.get_runtime_context().get_job_id()
print(ray.get_runtime_context().get_job_id(), ray.get(job.remote()))
"""


@pytest.mark.train
def test_a_workers_job_id_names_the_run() -> None:
    done = subprocess.run([sys.executable, "-c", JOB], capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr[-2000:]
    driver, worker = done.stdout.split()[-2:]
    assert worker.startswith(f"{driver}-") and len(worker) > len(driver) + 5


@pytest.mark.parametrize("address", [None, "10.0.0.1:6379"])
def test_runs_on_gpus_are_kept_apart(
    address: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Without a network, the hub would look for the policy for 23 s.
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    config = load_config("gpu", agent="reference_sql", ray_address=address)
    made = verl_settings(config, device="cuda", model_path="m", run_dir=tmp_path, steps=1)
    assert made["ray_kwargs"]["ray_init"]["runtime_env"]["worker_process_setup_hook"] == HOOK
    assert made["actor_rollout_ref"]["model"]["external_lib"] == "harness_verl.packing"

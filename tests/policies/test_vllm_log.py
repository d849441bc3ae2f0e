"""Why vLLM's engine did not start, by its log, and what to do."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("harness_policy_server")
from harness_policy_server.serve import _failure
from harness_policy_server.vllm_log import start_failure
from harness_verl.run import last_error

CORE = "(EngineCore pid=22569) ERROR 06-16 20:55:14 [core.py:1224] "
TAKEN = (
    "ValueError: Free memory on device cuda:0 (21.99/79.18 GiB) on startup is less than desired GPU memory utilization "
    "(0.5, 39.59 GiB). Decrease GPU memory utilization or reduce GPU memory used by other processes."
)
CHANGED = (
    "AssertionError: Error in memory profiling. Initial free memory 48.02 GiB, current free memory 50.59 GiB. This happens "
    "when other processes sharing the same container release GPU memory while vLLM is profiling during initialization. To "
    "fix this, ensure consistent GPU memory allocation or isolate vLLM in its own container."
)
NO_CACHE = (
    "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when initializing the "
    "engine."
)
TRACE = """{core}EngineCore failed to start.
{core}Traceback (most recent call last):
{core}  File "/usr/lib/python3.12/site-packages/vllm/v1/engine/core.py", line 1198, in run_engine_core
{core}    engine_core = EngineCoreProc(*args, engine_index=dp_rank, **kwargs)
{core}{cause}
(EngineCore pid=22569) Process EngineCore:
(EngineCore pid=22569) Traceback (most recent call last):
(EngineCore pid=22569) {cause}
(APIServer pid=395085)   File "/usr/lib/vllm/v1/engine/utils.py", line 1209, in wait_for_engine_startup
(APIServer pid=395085)     raise RuntimeError(
(APIServer pid=395085) RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {{}}
"""


def log_of(cause: str) -> str:
    """Return vLLM's log of a start that failed."""
    return TRACE.format(core=CORE, cause=cause)


@pytest.mark.parametrize(
    ("cause", "named"),
    [
        (TAKEN, ("21.99 of 79.18 GiB free", "39.59 GiB", "other processes use this GPU")),
        (CHANGED, ("another process gave memory of this GPU back", "48.02 GiB", "50.59 GiB")),
        (NO_CACHE, ("left no memory", "gpu_memory_utilization=0.8")),
    ],
)
def test_an_engine_that_did_not_start_names_cause_and_remedy_in_one_line(
    tmp_path: Path, cause: str, named: tuple[str, ...]
) -> None:
    log = tmp_path / "verl.log"
    log.write_text("harness: of an earlier launch\n" + log_of(cause), encoding="utf-8")
    found = last_error(log)
    assert "\n" not in found
    for words in (*named, "gpu_memory_utilization"):
        assert words in found
    if cause is not NO_CACHE:
        assert "engine_kwargs.vllm.kv_cache_memory_bytes=" in found


def test_a_server_that_did_not_start_names_the_cause_and_no_option_of_verl(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_text(log_of(TAKEN), encoding="utf-8")
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    found = str(_failure(process, log))
    assert "other processes use this GPU" in found
    assert "nvidia-smi" in found
    assert "verl." not in found


def test_other_failures_are_not_explained() -> None:
    assert start_failure(log_of("ValueError: something else")) is None
    assert start_failure(TAKEN) is None  # vLLM went on
    assert start_failure(log_of(TAKEN) + "started\n" * 500) is None  # of an earlier launch

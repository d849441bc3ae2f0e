"""What a process loads before it can run a rollout."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.slow
@pytest.mark.parametrize(
    "modules",
    [
        "harness.rollout.stack, harness_agentlightning_queue.store, harness.rollout.session",
        "harness_distributed.remote_queue, harness_distributed.places",  # in the order of `harness store`
    ],
)
def test_agentlightning_is_loaded_without_litellm_and_langchain(modules: str) -> None:
    code = (
        f"import sys, {modules}\n"
        "assert 'agentlightning' in sys.modules\n"
        "print(sorted(name for name in sys.modules if name.split('.')[0] in ('litellm', 'langchain_core')))"
    )
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"

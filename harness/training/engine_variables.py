"""Environment variables that change what an inference engine computes, for a run's identity."""

from __future__ import annotations

import os

PREFIX = "VLLM_"
"""vLLM reads its settings from variables with this prefix, as well as from its options."""
HARMLESS = frozenset(
    {
        "VLLM_ALLOW_RUNTIME_LORA_UPDATING",
        "VLLM_API_KEY",
        "VLLM_ASSETS_CACHE",
        "VLLM_CACHE_ROOT",
        "VLLM_CONFIGURE_LOGGING",
        "VLLM_CONFIG_ROOT",
        "VLLM_DISABLE_COMPILE_CACHE",
        "VLLM_DISABLE_LOG_LOGO",
        "VLLM_DO_NOT_TRACK",
        "VLLM_ENABLE_CUDA_COMPATIBILITY",
        "VLLM_ENGINE_ITERATION_TIMEOUT_S",
        "VLLM_ENGINE_READY_TIMEOUT_S",
        "VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS",
        "VLLM_HOST_IP",
        "VLLM_LOOPBACK_IP",
        "VLLM_NO_USAGE_STATS",
        "VLLM_PLUGINS",
        "VLLM_PORT",
        "VLLM_RPC_BASE_PATH",
        "VLLM_WORKER_MULTIPROC_METHOD",
    }
)
"""Variables that change only addresses, waits, caches, secrets and what clients may request."""
HARMLESS_PREFIXES = ("VLLM_DEBUG_", "VLLM_DOCKER_", "VLLM_LOGGING_", "VLLM_LOG_", "VLLM_USAGE_")
"""Beginnings of names of further such variables, for logs, builds and statistics of use."""


def engine_variables(device: str) -> dict[str, str]:
    """Return the variables that are set and can change replies, by name; none on a CPU.

    An unknown variable counts as one that can: two runs are not the same if only one has it.

    Args:
        device: `cpu`, `cuda` or `npu`.
    """
    if device == "cpu":
        return {}
    found = {}
    for name, value in sorted(os.environ.items()):
        counts = name.startswith(PREFIX) and not name.startswith(HARMLESS_PREFIXES)
        if counts and name not in HARMLESS:
            found[name] = value
    return found

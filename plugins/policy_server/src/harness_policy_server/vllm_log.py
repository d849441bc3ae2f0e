"""Find the cause in vLLM's log when its engine did not start, and give advice.

vLLM ends with "Engine core initialization failed. See root cause above", which names no cause.
Source of the messages: vLLM 0.24.0, `v1/worker/utils.py`, `v1/worker/gpu_worker.py` and
`v1/core/kv_cache_utils.py`.
"""

from __future__ import annotations

import re
from collections.abc import Callable

START_FAILED = "Engine core initialization failed"
"""vLLM's last line about an engine that did not start, for any cause."""
LAST_LINES = 400
"""Lines at the end of a log among which vLLM says that its engine did not start."""
LINES_OF_A_START = 4000
"""Lines at the end of a log among which the cause is."""
OPTION = "verl.actor_rollout_ref.rollout.engine_kwargs.vllm.kv_cache_memory_bytes"
SHARE = "verl.actor_rollout_ref.rollout.gpu_memory_utilization"
REMEDY = (
    "To let processes share a GPU, give each a cache of a fixed size "
    f"(--set {OPTION}=5000000000) and a small share of the "
    f"memory (--set {SHARE}=0.1), or start one after the other"
)
REMEDY_OF_A_SERVER = (
    "`nvidia-smi` lists the processes of this GPU: end those that you do not need, "
    "or start servers one after the other"
)
"""For a server that takes no options of verl."""
SMALLER = (
    f"Give it more memory (--set {SHARE}=0.8), "
    "or shorten prompts and answers (sampling.max_prompt_tokens)"
)

_TAKEN = re.compile(
    r"Free memory on device ?(?P<device>\S*) \((?P<free>[\d.]+)/(?P<total>[\d.]+) GiB\) "
    r"on startup is less than desired "
    r"GPU memory utilization \((?P<share>[\d.]+), (?P<wanted>[\d.]+) GiB\)"
)
_CHANGED = re.compile(
    r"Error in memory profiling\. Initial free memory (?P<before>[\d.]+) GiB, "
    r"current free memory (?P<after>[\d.]+) GiB"
)
_NO_CACHE = re.compile(r"No available memory for the cache blocks")
_SHORT_CACHE = re.compile(
    r"GiB KV cache is needed, which is larger than the available KV cache memory "
    r"\((?P<free>[\d.]+) GiB\)"
)
_OUT_OF_MEMORY = re.compile(r"CUDA out of memory|OutOfMemoryError")


def _taken(found: re.Match[str], remedy: str) -> str:
    return (
        f"the GPU had {found['free']} of {found['total']} GiB free when vLLM started, "
        f"and vLLM requested {found['wanted']} GiB (gpu_memory_utilization {found['share']}): "
        f"other processes use this GPU. {remedy}"
    )


def _changed(found: re.Match[str], remedy: str) -> str:
    return (
        "while vLLM measured how much memory it needs, "
        "another process gave memory of this GPU back (free before: "
        f"{found['before']} GiB, after: {found['after']} GiB). {remedy}"
    )


def _no_cache(found: re.Match[str], remedy: str) -> str:
    return f"the policy left no memory of the GPU's share for vLLM's cache. {SMALLER}"


def _short_cache(found: re.Match[str], remedy: str) -> str:
    return (
        f"vLLM's cache of {found['free']} GiB does not hold one conversation of the longest "
        f"allowed length. {SMALLER}"
    )


def _out_of_memory(found: re.Match[str], remedy: str) -> str:
    return f"the GPU's memory was full while vLLM started. {remedy}"


_CAUSES: tuple[tuple[re.Pattern[str], Callable[[re.Match[str], str], str]], ...] = (
    (_TAKEN, _taken),
    (_CHANGED, _changed),
    (_NO_CACHE, _no_cache),
    (_SHORT_CACHE, _short_cache),
    (_OUT_OF_MEMORY, _out_of_memory),
)


def start_failure(log: str, remedy: str = REMEDY) -> str | None:
    """Return why vLLM's engine did not start, with advice, in one line; None for other logs.

    Args:
        log: Output of vLLM, or of a program that started it. Only its last lines count, since a log
            may hold earlier starts.
        remedy: Advice for several processes that share a GPU.
    """
    lines = log.splitlines()
    if START_FAILED not in "\n".join(lines[-LAST_LINES:]):
        return None
    recent = "\n".join(lines[-LINES_OF_A_START:])
    for pattern, explain in _CAUSES:
        causes = list(pattern.finditer(recent))
        if causes:
            return f"vLLM did not start: {explain(causes[-1], remedy)}"
    return None

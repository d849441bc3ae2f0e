"""Estimate what fits a GPU: an update's activations, and the trainer's state together with vLLM."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from harness.config import Config
from harness.policies import about
from harness.util.parsing import at
from harness_verl.options import options

SHARE = 0.75
"""Share of a GPU's memory that an update may be expected to take."""
FILLED = 0.9
"""Share of a GPU's memory that the trainer's state and vLLM may take together."""
RESIDENT_UTILISATION = 0.5
"""vLLM's `gpu_memory_utilization` where the trainer's state stays on the GPU."""
OFFLOADED_UTILISATION = 0.6
"""vLLM's `gpu_memory_utilization` where the trainer's state is offloaded."""


def recomputes(config: Config, settings: Mapping[str, object], model: str) -> bool:
    """Return `train.recompute`, or whether activations might not fit the smallest GPU here.

    Args:
        settings: verl's settings.
        model: A local folder, or a Hugging Face id.
    """
    recompute = options(config).recompute
    if recompute is not None:
        return recompute
    if not (memory := gpu_bytes()):
        return True
    rollout = "actor_rollout_ref.rollout"
    awake = not at(settings, f"{rollout}.free_cache_engine", True)
    left = 1 - at(settings, f"{rollout}.gpu_memory_utilization", 0.5) if awake else 1
    tokens = at(settings, "actor_rollout_ref.actor.ppo_max_token_len_per_gpu") or (
        at(settings, "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu")
        * (config.sampling.max_prompt_tokens + config.sampling.max_response_tokens)
    )
    needed = update_bytes(about(model), tokens, config.gpus * config.nodes)
    return needed is None or needed > SHARE * left * memory


def placement(
    config: Config, own: Mapping[str, object], model: str, memory: int | None = None
) -> dict[str, Any]:
    """Return verl's settings of offloading, and vLLM's share of the GPU, that fit the smallest GPU.

    The trainer's state (weights, gradients and AdamW's moments) stays on the GPU where it fits
    together with vLLM. Where it does not fit, or the GPU's memory or the model's shape is unknown,
    it is offloaded to the host while vLLM generates. Options in `own` win over the result.

    Args:
        own: The user's options of verl, nested.
        model: A local folder, or a Hugging Face id.
        memory: Bytes of the smallest GPU; None asks the driver.
    """
    memory = gpu_bytes() if memory is None else memory
    stated = at(own, "actor_rollout_ref.rollout.gpu_memory_utilization")
    utilisation = RESIDENT_UTILISATION if stated is None else float(stated)
    state = update_bytes(about(model), 0, config.gpus * config.nodes)
    fits = state is not None and state + utilisation * memory <= FILLED * memory
    engine = {"param_offload": not fits, "optimizer_offload": not fits}
    share = RESIDENT_UTILISATION if fits else OFFLOADED_UTILISATION
    return {
        "actor_rollout_ref": {
            "actor": {"fsdp_config": engine},
            "rollout": {"gpu_memory_utilization": share},
        }
    }


def update_bytes(about: Mapping[str, Any], tokens: int, devices: int) -> float | None:
    """Estimate a device's bytes in an update that keeps activations; None for an unknown shape.

    The sum has three parts: weights, gradients and AdamW's two moments in fp32, shared among
    devices; for each token and layer what the backward pass needs, in bf16 (twelve vectors of the
    hidden size, four of the inner one); for each token the logits, twice in fp32. For Qwen2.5-1.5B
    the estimate is 100 GB with 16,384 tokens; an H200 reserved 77.

    Args:
        about: The model's `config.json`.
        tokens: Tokens of one pass.
    """
    try:
        names = ("hidden_size", "intermediate_size", "num_hidden_layers", "vocab_size")
        hidden, inner, layers, words = (int(about[name]) for name in names)
    except (KeyError, TypeError, ValueError):
        return None
    weights = layers * (4 * hidden**2 + 3 * hidden * inner) + 2 * words * hidden
    return 16 * weights / devices + tokens * (2 * layers * (12 * hidden + 4 * inner) + 8 * words)


def gpu_bytes() -> int:
    """Return the bytes of this machine's smallest GPU, as its driver reports; 0 without a GPU."""
    with suppress(Exception):
        nvml: Any = importlib.import_module("pynvml")
        nvml.nvmlInit()
        totals = []
        for index in range(nvml.nvmlDeviceGetCount()):
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            totals.append(nvml.nvmlDeviceGetMemoryInfo(handle).total)
        return int(min(totals))
    return 0

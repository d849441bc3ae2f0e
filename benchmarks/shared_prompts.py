"""Compare an update with shared prompts to one with repeated prompts on this GPU.

    python benchmarks/shared_prompts.py >shared.jsonl

The first line holds the largest difference of log probabilities and the relative difference of
gradients to an fp32 update with repeated prompts, for two layers of Qwen2.5-Coder-1.5B's shape. The
other lines hold the seconds of the forward and backward passes of one step at that model's full
depth: 32 tasks of 520 tokens, 4 replies of 33 tokens each, without and with a rewrite of every
query. Weights and tokens are random.
"""

from __future__ import annotations

import json
import sys
import time
from types import SimpleNamespace
from typing import Any

import torch
from tensordict import TensorDict
from transformers import AutoModelForCausalLM, Qwen2Config
from verl.utils import tensordict_utils
from verl.workers.engine.utils import prepare_micro_batches
from verl.workers.utils.padding import no_padding_2_padding

from harness_verl import packing
from harness_verl.names import PACKED, SHARED

SHAPE: dict[str, Any] = {
    "vocab_size": 151936,
    "hidden_size": 1536,
    "intermediate_size": 8960,
    "num_attention_heads": 12,
    "num_key_value_heads": 2,
    "max_position_embeddings": 32768,
    "tie_word_embeddings": True,
}
PASS_TOKENS = 16384
SYSTEM_TOKENS = 40
"""Tokens of the system message, which all prompts of one role share."""


def engine(layers: int, attention: str, dtype: torch.dtype) -> Any:
    """Return an engine with a model of random weights on the GPU."""
    torch.manual_seed(0)
    made: Any = object.__new__(packing.PackedEngine)
    with torch.device("cuda"):
        made.module = AutoModelForCausalLM.from_config(
            Qwen2Config(**SHAPE, num_hidden_layers=layers),
            attn_implementation=attention,
            dtype=dtype,
        ).train()
    made.use_ulysses_sp = False
    made.pad_to_length = False
    made.engine_config = SimpleNamespace(
        entropy_checkpointing=False, entropy_from_logits_with_chunking=False
    )
    return made


def rows(tasks: int, group: int, prompt: int, reply: int, rewrite: int) -> TensorDict:
    """Return the rows of one step.

    Args:
        tasks: Number of tasks.
        group: Rollouts of each task.
        prompt: Tokens of a task's prompt.
        reply: Tokens of a reply.
        rewrite: Tokens that a rewrite's prompt has after the task; 0: no rewrites.
    """
    generator = torch.Generator().manual_seed(1)

    def ids(size: int) -> torch.Tensor:
        return torch.randint(0, 150000, (size,), generator=generator)

    system = ids(SYSTEM_TOKENS)
    pairs = []
    for _ in range(tasks):
        task = torch.cat([system, ids(prompt - SYSTEM_TOKENS)])
        for _ in range(group):
            pairs.append((task, ids(reply)))
            if rewrite:
                # Another role begins with another system message.
                revised = torch.cat([system[: SYSTEM_TOKENS // 2], task, ids(rewrite)])
                pairs.append((revised, ids(reply)))
    whole = [torch.cat(pair) for pair in pairs]
    columns = {
        "prompts": [prompt_ids for prompt_ids, _ in pairs],
        "responses": [reply_ids for _, reply_ids in pairs],
        "input_ids": whole,
        "position_ids": [torch.arange(len(row)) for row in whole],
        "response_mask": [torch.ones(len(reply_ids)) for _, reply_ids in pairs],
    }
    nested = {
        name: torch.nested.as_nested_tensor(values, layout=torch.jagged)
        for name, values in columns.items()
    }
    made = TensorDict(nested, batch_size=len(whole))
    tensordict_utils.assign_non_tensor(
        made,
        use_remove_padding=True,
        calculate_entropy=False,
        temperature=1.0,
        max_token_len_per_gpu=PASS_TOKENS,
    )
    return made.to("cuda")


def update(made: Any, data: TensorDict) -> tuple[torch.Tensor, int]:
    """Run one forward and backward pass; return masked log probabilities and computed tokens."""
    inputs, arguments = made.prepare_model_inputs(data)
    raw = made.module(**inputs, use_cache=False)
    output = made.prepare_model_outputs(raw, arguments, data, None)
    log_probs = no_padding_2_padding(output["log_probs"], data)
    mask = data["response_mask"].to_padded_tensor(0.0)
    weights = torch.linspace(-1, 1, mask.numel(), device="cuda").view(mask.shape)
    (log_probs * weights * mask).sum().backward()
    return (log_probs * mask).detach(), inputs["input_ids"].shape[1]


def equality() -> dict[str, Any]:
    """Return the differences to repeated prompts in fp32."""
    data = rows(3, 4, 300, 30, 50)
    found: dict[str, Any] = {"device": torch.cuda.get_device_name(), "torch": torch.__version__}
    reference: tuple[torch.Tensor, torch.Tensor] | None = None
    for dtype in (torch.float32, torch.bfloat16):
        for prompts, attention in (("repeated", PACKED), ("shared", SHARED)):
            made = engine(2, attention, dtype)
            log_probs, tokens = update(made, data)
            parts = [value.grad.float().flatten() for value in made.module.parameters()]
            gradient = torch.cat(parts)
            if reference is None:
                reference = log_probs, gradient
            found[f"{str(dtype).removeprefix('torch.')} {prompts}"] = {
                "tokens": tokens,
                "log_prob_max_diff": float((log_probs - reference[0]).abs().max()),
                "gradient_relative_diff": float(
                    (gradient - reference[1]).norm() / reference[1].norm()
                ),
            }
            del made
            torch.cuda.empty_cache()
    return found


def timed(rewrite: int, recompute: bool, shared: bool) -> dict[str, Any]:
    """Return the seconds of the second of two steps, and its peak memory."""
    data = rows(32, 4, 520, 33, rewrite)
    made = engine(28, SHARED if shared else PACKED, torch.bfloat16)
    if recompute:
        made.module.gradient_checkpointing_enable({"use_reentrant": False})
    divide = packing.passes_by_prefix if shared else prepare_micro_batches
    passes, _ = divide(data)
    for _ in range(2):
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        began = time.perf_counter()
        tokens = sum(update(made, part)[1] for part in passes)
        torch.cuda.synchronize()
        took = time.perf_counter() - began
    found = {
        "rewrites": bool(rewrite),
        "recompute": recompute,
        "prompts": "shared" if shared else "repeated",
        "tokens": tokens,
        "passes": len(passes),
        "seconds": round(took, 3),
        "peak_GB": round(torch.cuda.max_memory_allocated() / 1e9, 1),
    }
    del made
    torch.cuda.empty_cache()
    return found


def main() -> None:
    """Print the lines."""
    if not torch.cuda.is_available():
        sys.exit("shared_prompts needs a CUDA device, and torch finds none")
    print(json.dumps(equality()), flush=True)
    for rewrite in (0, 90):
        for recompute in (True, False):
            for shared in (False, True):
                print(json.dumps(timed(rewrite, recompute, shared)), flush=True)


if __name__ == "__main__":
    main()

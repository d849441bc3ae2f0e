"""Measure the limits for `gpu_step.py`: the same tokens on the same device, with nothing around.

    python benchmarks/gpu_limits.py rollout WORK.json OUT.json   # vLLM's offline engine
    python benchmarks/gpu_limits.py update WORK.json OUT.json    # FSDP2: forward, backward, AdamW

Each runs in a process of its own, so that one cannot take the other's memory, and writes OUT.json
again after every measurement. WORK.json has `model`, `engine`, `rows` (`prompt_ids`,
`response_ids`), `sampling`, `seed`, `repeats`, `micro_batch`, `optimizer_steps`,
`gradient_checkpointing`, `budget_s`.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
import zlib
from pathlib import Path
from typing import Any


def rollout(work: dict[str, Any], out: Path) -> None:
    """Time all calls at once, each to its recorded length, seeded as in the run and unseeded."""
    from vllm import LLM, SamplingParams
    from vllm.inputs import TokensPrompt

    began = time.perf_counter()
    engine = LLM(model=work["model"], **work["engine"])
    result: dict[str, Any] = {"engine_start_s": time.perf_counter() - began}
    rows = work["rows"]
    prompts = [TokensPrompt(prompt_token_ids=list(row["prompt_ids"])) for row in rows]

    def once(seeded: bool) -> float:
        parameters = [
            SamplingParams(
                temperature=work["sampling"]["temperature"],
                top_p=work["sampling"]["top_p"],
                max_tokens=len(row["response_ids"]),
                ignore_eos=True,
                detokenize=True,
                logprobs=0,  # of the sampled token, as the gateway asks
                seed=zlib.crc32(f"{work['seed']}/{number}".encode()) if seeded else None,
            )
            for number, row in enumerate(rows)
        ]
        began = time.perf_counter()
        answers = engine.generate(prompts, parameters, use_tqdm=False)
        took = time.perf_counter() - began
        sampled = [len(answer.outputs[0].token_ids) for answer in answers]
        if sampled != [len(row["response_ids"]) for row in rows]:
            result["note"] = (
                f"sampled {sum(sampled)} tokens, "
                f"recorded {sum(len(r['response_ids']) for r in rows)}"
            )
        return took

    for name, seeded in (("seeded_s", True), ("unseeded_s", False)):
        once(seeded)  # kernels and graphs of these shapes
        times: list[float] = []
        for _ in range(work["repeats"]):
            engine.reset_prefix_cache()  # the run's weights had just changed: nothing was cached
            times.append(once(seeded))
            result[name] = statistics.median(times)
            result[name.replace("_s", "_all_s")] = times
            out.write_text(json.dumps(result))


def update(work: dict[str, Any], out: Path) -> None:
    """Time one step's rows in micro-batches: forward and backward passes and optimizer steps."""
    import os

    import torch
    import torch.distributed as dist
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
    from transformers import AutoModelForCausalLM

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", "29411")
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo", rank=0, world_size=1)
    model: Any = AutoModelForCausalLM.from_pretrained(
        work["model"], dtype=torch.float32, attn_implementation="sdpa"
    )
    if work["gradient_checkpointing"]:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    model.to(device).train()
    mesh = dist.device_mesh.init_device_mesh(device.type, (1,))
    compute = torch.bfloat16 if device.type == "cuda" else torch.float32
    policy = MixedPrecisionPolicy(param_dtype=compute, reduce_dtype=torch.float32)
    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6, fused=device.type == "cuda")

    def now() -> float:
        if device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter()

    def passes(rows: list[dict[str, Any]]) -> float:
        began = now()
        ids, mask, kept = _padded(rows, device)
        positions = (mask.cumsum(-1) - 1).clamp(min=0)
        output = model(
            input_ids=ids,
            attention_mask=mask,
            position_ids=positions,
            use_cache=False,
            logits_to_keep=kept + 1,
        )
        logits = output.logits[:, :-1].float()
        picked = logits.gather(-1, ids[:, -kept:, None])[..., 0] - logits.logsumexp(-1)
        (-(picked * mask[:, -kept:]).sum() / mask.sum()).backward()
        return now() - began

    def step() -> float:
        began = now()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)  # so that a repeated step has all of its work
        return now() - began

    size = work["micro_batch"]
    micro = [work["rows"][at : at + size] for at in range(0, len(work["rows"]), size)]
    passes(max(micro, key=lambda rows: sum(len(row["prompt_ids"]) for row in rows)))
    step()  # allocates the optimizer's state
    began, took, done = time.perf_counter(), 0.0, 0
    for rows in micro:
        took += passes(rows)
        done += len(rows)
        if time.perf_counter() - began > work["budget_s"]:
            break
    step_s = statistics.median(step() for _ in range(3))
    peak = torch.cuda.max_memory_allocated() / 2**30 if device.type == "cuda" else None
    whole = took * len(work["rows"]) / done
    result = {
        "passes_s": whole,
        "optimizer_step_s": step_s,
        "update_s": whole + step_s * work["optimizer_steps"],
        "rows_measured": done,
        "max_memory_allocated_gib": peak,
    }
    out.write_text(json.dumps(result))
    dist.destroy_process_group()


def _padded(rows: list[dict[str, Any]], device: Any) -> tuple[Any, Any, int]:
    """Pad prompts on the left and responses on the right, so that responses share columns.

    Returns:
        Ids and mask, [rows, longest prompt + longest response], and the longest response.
    """
    import torch

    left, right = (
        max(len(row["prompt_ids"]) for row in rows),
        max(len(row["response_ids"]) for row in rows),
    )
    ids = torch.zeros(len(rows), left + right, dtype=torch.long)
    mask = torch.zeros_like(ids)
    for number, row in enumerate(rows):
        first, last = left - len(row["prompt_ids"]), left + len(row["response_ids"])
        ids[number, first:last] = torch.tensor([*row["prompt_ids"], *row["response_ids"]])
        mask[number, first:last] = 1
    return ids.to(device), mask.to(device), right


if __name__ == "__main__":
    {"rollout": rollout, "update": update}[sys.argv[1]](
        json.loads(Path(sys.argv[2]).read_text()), Path(sys.argv[3])
    )

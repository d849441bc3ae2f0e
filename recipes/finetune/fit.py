"""The training loop: AdamW on packed rows, the loss on replies only. Plain PyTorch.

A library's trainer (TRL's, on accelerate and datasets) would need as many lines to be fed from an endless stream, to
follow the clock and to stop at a held-out share as this loop has.
"""

from __future__ import annotations

import argparse
import logging
import math
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

from recipes.finetune.rows import Batch, Source, Stream

log = logging.getLogger(__name__)

PACKED = "recipes_packed"


def fit(
    model: Any,
    tokenizer_file: Path,
    source: Source,
    arguments: argparse.Namespace,
    enough: Callable[[], bool],
) -> dict[str, Any]:
    """Train a model on a source of conversations; returns what was done.

    Args:
        arguments: `seed`, `device`, `steps` or `minutes`, `batch_tokens`, `learning_rate`, `workers`, `replays`,
            `blocks_per_group`, `every`.
        enough: Called every `every` steps, which no machine is faster to reach than another; ends the training.
    """
    stream = Stream(source, str(tokenizer_file), arguments.workers, arguments.blocks_per_group)
    try:
        return _fit(model, stream, arguments, enough)
    finally:
        stream.close()
        _rest(model)


def _fit(
    model: Any, stream: Stream, arguments: argparse.Namespace, enough: Callable[[], bool]
) -> dict[str, Any]:
    import torch

    device = arguments.device
    decayed = [p for p in model.parameters() if p.ndim > 1]
    plain = [p for p in model.parameters() if p.ndim <= 1]
    optimizer = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": 0.05}, {"params": plain, "weight_decay": 0.0}],
        lr=arguments.learning_rate,
        betas=(0.9, 0.95),
        fused=device == "cuda",
    )
    _work(model)
    rng = Random(f"order/{arguments.seed}")
    groups: list[Any] = []
    step, tokens, begun, waited = 0, 0, time.perf_counter(), 0.0
    paused, loss = 0.0, None
    done, ended = 0.0, False
    while done < 1 and not ended:
        asked = time.perf_counter()
        groups = [*(groups if arguments.replays else ()), stream.group()]
        waited += time.perf_counter() - asked
        again = [groups[rng.randrange(len(groups))] for _ in range(arguments.replays)]
        for group in (groups[-1], *again):
            for batch in group.batches(rng, arguments.batch_tokens, device):
                elapsed = time.perf_counter() - begun - paused
                done = (
                    step / arguments.steps
                    if arguments.steps
                    else elapsed / (60 * arguments.minutes)
                )
                if done >= 1 or ended:
                    break
                for settings in optimizer.param_groups:
                    settings["lr"] = arguments.learning_rate * schedule(done, step)
                loss = _step(model, optimizer, batch, device)
                step += 1
                tokens += batch.ids.numel()
                if step % 200 == 0:
                    log.info(
                        "step %d  %.1f %%  loss %.4f  %.2f M tokens/s  waited %.0f s",
                        step, 100 * done, float(loss), tokens / 1e6 / max(elapsed, 1e-9), waited,
                    )  # fmt: skip
                if step % arguments.every == 0:
                    begun_to_look = time.perf_counter()
                    _rest(model)
                    ended = enough()
                    _work(model)
                    paused += time.perf_counter() - begun_to_look
    return {
        "steps": step,
        "tokens": tokens,
        "fresh_blocks": stream.blocks,
        "train_s": round(time.perf_counter() - begun - paused, 1),
        "last_loss": None if loss is None else round(float(loss), 6),
        "data_sha256": stream.digest.hexdigest(),
    }


def _work(model: Any) -> None:
    from transformers import AttentionInterface
    from transformers.masking_utils import AttentionMaskInterface

    AttentionInterface.register(PACKED, _attention)
    AttentionMaskInterface.register(PACKED, lambda *_, **__: None)
    model.train()
    model.set_attn_implementation(PACKED)


def _rest(model: Any) -> None:
    """As it is measured and saved."""
    model.eval()
    model.set_attn_implementation("sdpa")


def _attention(module: Any, *states: Any, **more: Any) -> Any:
    """Packed rows in the precision of autocast, which knows no kernel of theirs."""
    import torch

    from harness_policy_server.attention import packed

    kind = states[0].device.type
    if torch.is_autocast_enabled(kind):
        dtype = torch.get_autocast_dtype(kind)
        states = (*(one.to(dtype) for one in states[:3]), *states[3:])
    return packed(module, *states, **more)


def schedule(done: float, step: int) -> float:
    """Share of the peak learning rate: 300 steps of warm-up, then a cosine down to 2 %."""
    return min(1.0, (step + 1) / 300) * (
        0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * min(done, 1.0)))
    )


def loss_of(model: Any, batch: Batch) -> Any:
    """Mean cross-entropy of what is learnt; logits are made for that alone."""
    import torch

    kept = torch.nonzero(batch.targets != -100).squeeze(1)
    logits = model(
        input_ids=batch.ids,
        position_ids=batch.positions,
        use_cache=False,
        logits_to_keep=kept,
        cu_seqlens=batch.ends.to(batch.ids.device),
        cu_seqlens_cpu=batch.ends,
    ).logits[0]
    return torch.nn.functional.cross_entropy(logits.float(), batch.targets[kept])


def _step(model: Any, optimizer: Any, batch: Batch, device: str) -> Any:
    import torch

    with torch.autocast(device, dtype=torch.bfloat16, enabled=device == "cuda"):
        loss = loss_of(model, batch)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return loss.detach()

"""Compare log-probabilities of a micro batch, forward and backward: harness's, and verl's loop.

python benchmarks/logprobs.py [--device cuda] [--tokens 4096] [--vocabulary 1280]
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from verl.utils import torch_functional

theirs = torch_functional.logprobs_from_logits_v2
from harness_verl.logprobs import logprobs_from_logits  # noqa: E402  (replaces verl's, so after it)


def seconds(
    function: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
    logits: torch.Tensor,
    repeats: int,
) -> float:
    labels = torch.randint(0, logits.shape[-1], logits.shape[:1], device=logits.device)
    taken = []
    for _ in range(repeats + 1):
        logits.grad = None
        _wait(logits)
        began = time.perf_counter()
        function(logits, labels).sum().backward()
        _wait(logits)
        taken.append(time.perf_counter() - began)
    return statistics.median(taken[1:])


def _wait(tensor: torch.Tensor) -> None:
    if tensor.is_cuda:
        torch.cuda.synchronize()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--vocabulary", type=int, default=1280)
    parser.add_argument("--repeats", type=int, default=3)
    asked = parser.parse_args()
    print(
        f"{asked.tokens} tokens, vocabulary {asked.vocabulary}, {asked.device}, "
        "forward and backward"
    )
    print(f"{'logits':8} {'verl (s)':>10} {'harness (s)':>12} {'ratio':>7}")
    for dtype in (torch.float32, torch.bfloat16):
        logits = torch.randn(
            asked.tokens, asked.vocabulary, device=asked.device, dtype=dtype, requires_grad=True
        )
        before, after = (
            seconds(theirs, logits, asked.repeats),
            seconds(logprobs_from_logits, logits, asked.repeats),
        )
        print(
            f"{str(dtype).removeprefix('torch.'):8} {before:10.3f} {after:12.3f} "
            f"{before / after:6.1f}x"
        )


if __name__ == "__main__":
    main()

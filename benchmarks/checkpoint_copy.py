"""Measure copies of a training's state to the host's memory, by the kind of that memory.

    python benchmarks/checkpoint_copy.py [--gib 3] [--rounds 5] [--device cuda]

A state of tensors of 128 MiB is copied to ordinary memory tensor by tensor, to ordinary memory in
pieces, to fresh huge pages and to memory that an earlier copy has used. Prints GB/s and the ratio
of the times' medians to the first one. In a virtual machine, fresh huge pages can be the slowest:
the host may have to back them first. Only ratios are comparable between machines, and what a CPU
shows says nothing about copies from a GPU.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import torch

from harness_verl.host_copies import COPIES_AT_ONCE, Copier
from harness_verl.host_memory import HostMemory, huge_pages

TENSOR = 128 * 2**20


def by_tensor(state: list[torch.Tensor]) -> list[torch.Tensor]:
    """Copy tensor by tensor to ordinary memory."""
    targets = [torch.empty_like(tensor, device="cpu") for tensor in state]
    with ThreadPoolExecutor(COPIES_AT_ONCE) as pool:
        for _ in pool.map(torch.Tensor.copy_, targets, state):
            pass
    return targets


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--gib", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    options = parser.parse_args()
    count = options.gib * 2**30 // TENSOR
    state = [torch.ones(TENSOR // 4, device=options.device) for _ in range(count)]
    copier, reused = Copier(), HostMemory()
    reused.keep(huge_pages(count * TENSOR), touched=count * TENSOR)

    def in_pieces(memory: HostMemory) -> object:
        memory.begin()
        storages = [tensor.untyped_storage() for tensor in state]
        jobs = [(memory.take(storage.nbytes()), storage) for storage in storages]
        copier.copy(jobs)
        return jobs

    def fresh_huge() -> object:
        memory = HostMemory()
        memory.keep(huge_pages(count * TENSOR), touched=count * TENSOR)
        return in_pieces(memory)

    kinds: dict[str, Callable[[], object]] = {
        "ordinary memory, by tensor": lambda: by_tensor(state),
        "ordinary memory, in pieces": lambda: in_pieces(HostMemory()),
        "fresh huge pages": fresh_huge,
        "reused memory": lambda: in_pieces(reused),
    }
    taken: dict[str, list[float]] = {name: [] for name in kinds}
    for number in range(options.rounds + 1):
        for name, copy in kinds.items():
            began = time.perf_counter()
            copies = copy()
            if number:  # the first round touches the memory that is reused
                taken[name].append(time.perf_counter() - began)
            del copies  # freeing is no part of the time: a thread of its own does it
    medians = {name: statistics.median(times) for name, times in taken.items()}
    first = next(iter(medians.values()))
    for name, median in medians.items():
        speed = count * TENSOR / median / 1e9
        print(f"{name:27} {median:6.2f} s  {speed:5.1f} GB/s  {median / first:.2f}x")
    print(
        f"medians of {options.rounds}, {options.gib} GiB, {options.device}, {os.cpu_count()} cores"
    )


if __name__ == "__main__":
    main()

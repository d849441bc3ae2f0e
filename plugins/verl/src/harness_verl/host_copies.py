"""Copies of nested states in the host's memory.

CUDA copies to ordinary memory through page-locked memory of the driver, on one stream one copy
after another. Here several threads copy side by side, each through page-locked memory and a stream
of its own.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from queue import SimpleQueue
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from harness_verl.host_memory import HostMemory

COPIES_AT_ONCE = 8
"""Threads that copy."""
PIECE = 32 * 2**20
"""Bytes that a thread copies at once."""

logger = logging.getLogger(__name__)


class HostCopies:
    """Copies the states of one file, each storage once and whole, as `torch.save` writes them.

    Args:
        memory: Where the copies are.
        copier: Copies the bytes.
    """

    def __init__(self, memory: HostMemory, copier: Copier) -> None:
        self._memory = memory
        self._copier = copier
        self._copied: dict[int, torch.UntypedStorage] = {}
        self._jobs: list[tuple[torch.UntypedStorage, torch.UntypedStorage]] = []

    def of(self, value: Any) -> Any:
        """Return a copy of a state; its tensors are filled by `fill`."""
        if isinstance(value, torch.Tensor):
            return self._tensor(value.detach())
        if isinstance(value, Mapping):
            # A copy of the mapping keeps its class and attributes, such as a state's `_metadata`.
            copied: Any = copy.copy(value)
            for key, inner in value.items():
                copied[key] = self.of(inner)
            return copied
        if isinstance(value, list):
            return [self.of(inner) for inner in value]
        if type(value) is tuple:
            return tuple(self.of(inner) for inner in value)
        return copy.deepcopy(value)

    def fill(self) -> None:
        """Copy the values of all tensors, and return when they are there."""
        self._copier.copy(self._jobs)
        self._jobs.clear()

    def _tensor(self, tensor: torch.Tensor) -> torch.Tensor:
        if isinstance(tensor, DTensor):
            # The constructor keeps the copy on the host; `from_local` would move it to the device.
            return DTensor(self._tensor(tensor.to_local()), tensor._spec, requires_grad=False)
        if tensor.layout != torch.strided or tensor.is_conj() or tensor.is_neg():
            return tensor.to("cpu", copy=True)
        storage = tensor.untyped_storage()
        if storage._cdata not in self._copied:
            target = self._memory.take(storage.nbytes())
            self._jobs.append((target, storage))  # keeps the source, so its number stays its own
            self._copied[storage._cdata] = target
        place = self._copied[storage._cdata]
        empty = torch.empty(0, dtype=tensor.dtype)
        return empty.set_(place, tensor.storage_offset(), tensor.shape, tensor.stride())


class Copier:
    """Copies storages to the host in several threads; keeps its page-locked memory."""

    def __init__(self) -> None:
        self._stages: dict[torch.device, SimpleQueue[_Stage]] = {}

    def copy(self, jobs: list[tuple[torch.UntypedStorage, torch.UntypedStorage]]) -> None:
        """Copy to each first storage of a pair, on the host, the second one."""
        pieces: list[tuple[torch.Tensor, torch.Tensor]] = []
        for target, source in jobs:
            pieces += zip(_bytes(target).split(PIECE), _bytes(source).split(PIECE), strict=True)
        for device in {source.device for _, source in jobs if source.device.type == "cuda"}:
            # The threads' streams do not wait for the kernels that make the values.
            torch.cuda.current_stream(device).synchronize()
            if device not in self._stages:
                self._stages[device] = _stages(device)
        with ThreadPoolExecutor(COPIES_AT_ONCE) as pool:
            for _ in pool.map(self._copy, pieces):
                pass

    def _copy(self, piece: tuple[torch.Tensor, torch.Tensor]) -> None:
        target, source = piece
        on_its_device = torch.cuda.device(source.device) if source.is_cuda else nullcontext()
        with on_its_device:
            stages = self._stages.get(source.device)
            if stages is None or stages.empty():
                target.copy_(source)
                return
            stage = stages.get()
            try:
                stage.copy(target, source)
            finally:
                stages.put(stage)


class _Stage:
    """Page-locked memory between a GPU and the host's memory, and a stream."""

    def __init__(self, device: torch.device) -> None:
        self._memory = torch.empty(PIECE, dtype=torch.uint8, pin_memory=True)
        self._stream = torch.cuda.Stream(device)

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        staged = self._memory[: len(source)]
        with torch.cuda.stream(self._stream):
            staged.copy_(source, non_blocking=True)
        self._stream.synchronize()
        target.copy_(staged)


def _stages(device: torch.device) -> SimpleQueue[_Stage]:
    """Return a stage for each thread; none if the system gives no page-locked memory."""
    stages: SimpleQueue[_Stage] = SimpleQueue()
    try:
        for _ in range(COPIES_AT_ONCE):
            stages.put(_Stage(device))
    except RuntimeError as error:
        logger.warning("copies of checkpoints without page-locked memory: %s", error)
        return SimpleQueue()
    return stages


def _bytes(storage: torch.UntypedStorage) -> torch.Tensor:
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)

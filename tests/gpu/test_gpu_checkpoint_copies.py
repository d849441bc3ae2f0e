"""Copies of a GPU's tensors through page-locked memory."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="needs the extra gpu")

from harness_verl.host_copies import PIECE, Copier, HostCopies  # noqa: E402
from harness_verl.host_memory import HostMemory  # noqa: E402

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


def test_copies_hold_what_was_computed_before() -> None:
    memory, copier = HostMemory(), Copier()
    state = [torch.zeros(size, device="cuda") for size in (1, 1000, PIECE // 2 + 3, 3 * PIECE)]
    memory.prepare(state)
    for number in (1.0, 2.0):
        memory.begin()
        copies = HostCopies(memory, copier)
        product = torch.ones(4096, 4096, device="cuda")
        for _ in range(50):  # the GPU is behind
            product = product @ product / 4096
        for tensor in state:
            tensor.copy_(product[0, 0] * number)
        copied = copies.of(state)
        copies.fill()
        for tensor in copied:
            assert tensor.device.type == "cpu"
            assert bool((tensor == number).all())

"""Dequantises the weights of a Qwen2 GGUF file on all cores."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np

from harness.errors import ConfigError

if TYPE_CHECKING:
    from gguf import GGUFReader, ReaderTensor
    from torch import Tensor

WEIGHTS = 1 << 20
"""Approximate weights of one job: few enough for a processor's cache, enough to amortise calls."""
SAME = 0.2
"""Relative distance below which two quantised matrices are copies of one."""
_COMPARED_ROWS = 64
_LAYER = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
}
_TOP = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output.weight": "lm_head.weight",
    "output_norm.weight": "model.norm.weight",
}


def tied(reader: GGUFReader) -> tuple[str, str] | None:
    """Return the better and the worse quantised copy of one embedding matrix, if a file has two.

    A model that ties its embeddings has one matrix for input and output; a file may quantise it
    twice. Two matrices count as copies where their first rows differ by less than quantisation
    does; separately trained matrices differ by more than their own size.
    """
    names = ("token_embd.weight", "output.weight")
    tensors = {tensor.name: tensor for tensor in reader.tensors if tensor.name in names}
    if len(tensors) < len(names):
        return None
    embedding, output = tensors["token_embd.weight"], tensors["output.weight"]
    if list(embedding.shape) != list(output.shape):
        return None
    first, second = _values(embedding, 0, _COMPARED_ROWS), _values(output, 0, _COMPARED_ROWS)
    size = float(np.linalg.norm(second))
    if float(np.linalg.norm(first - second)) >= SAME * size:
        return None
    worse, better = sorted((output, embedding), key=_bits)
    return better.name, worse.name


def weights(reader: GGUFReader, skip: str | None = None) -> dict[str, Tensor]:
    """Return a file's weights in bfloat16 by the names that transformers has for Qwen2.

    Args:
        skip: A tensor that is left out.

    Raises:
        ConfigError: The file holds a tensor that Qwen2 does not have.
    """
    import torch

    state: dict[str, Tensor] = {}
    jobs: list[tuple[ReaderTensor, Tensor, int, int]] = []
    for tensor in reader.tensors:
        if tensor.name == skip:
            continue
        shape = [int(size) for size in reversed(tensor.shape)]
        weight = torch.empty(shape, dtype=torch.bfloat16)
        state[_name(tensor.name)] = weight
        rows = shape[0] if tensor.data.ndim == 2 else 1
        step = max(1, WEIGHTS * rows // weight.numel())
        for first in range(0, rows, step):
            jobs.append((tensor, weight, first, min(rows, first + step)))
    # Threads are enough: numpy and torch release the interpreter's lock while they compute.
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        for _ in pool.map(_fill, jobs):
            pass
    return state


def _name(name: str) -> str:
    """Return transformers' name of a tensor."""
    match = re.fullmatch(r"blk\.(\d+)\.(\w+)\.(weight|bias)", name)
    if match and match[2] in _LAYER:
        return f"model.layers.{match[1]}.{_LAYER[match[2]]}.{match[3]}"
    if name in _TOP:
        return _TOP[name]
    raise ConfigError(f"the tensor {name!r} is none of Qwen2's: take the model's own folder")


def _bits(tensor: ReaderTensor) -> float:
    """Return the bits of a weight."""
    return float(8 * tensor.n_bytes / tensor.n_elements)


def _values(tensor: ReaderTensor, first: int, last: int) -> Any:
    from gguf.quants import dequantize

    data = tensor.data[first:last] if tensor.data.ndim == 2 else tensor.data
    return dequantize(data, tensor.tensor_type).astype(np.float32, copy=False)


def _fill(job: tuple[ReaderTensor, Tensor, int, int]) -> None:
    """Write some rows of a tensor as bfloat16, rounded to nearest, ties to even."""
    import torch

    tensor, weight, first, last = job
    numbers = _values(tensor, first, last)
    if not numbers.flags.writeable:
        # What is stored in fp32 is a view of the file, of which torch warns.
        numbers = numbers.copy()
    values = torch.from_numpy(numbers)
    target = weight[first:last] if tensor.data.ndim == 2 else weight
    target.copy_(values.reshape(target.shape))


def parameters(state: Mapping[str, Tensor]) -> int:
    """Return how many weights there are."""
    return sum(weight.numel() for weight in state.values())

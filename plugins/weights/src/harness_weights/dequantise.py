"""Dequantises the weights of a Qwen2 GGUF file on all cores."""

from __future__ import annotations

import multiprocessing
import os
import re
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from harness.errors import ConfigError

if TYPE_CHECKING:
    from gguf import GGUFReader, ReaderTensor
    from torch import Tensor

ROWS = 4096
"""Rows of a matrix that one job dequantises."""
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
    """Return the better and the worse of two quantised copies of one embedding matrix, if a file holds two.

    A model that ties its embeddings has one matrix for input and output; a file may quantise it twice. Two matrices count
    as copies where their first rows differ by less than quantisation does; matrices that are trained apart differ by more
    than their own size.
    """
    names = ("token_embd.weight", "output.weight")
    tensors = {tensor.name: tensor for tensor in reader.tensors if tensor.name in names}
    if len(tensors) < len(names):
        return None
    embedding, output = (tensors[name] for name in names)
    if list(embedding.shape) != list(output.shape):
        return None
    first, second = (_values(tensor, 0, _COMPARED_ROWS) for tensor in (embedding, output))
    size = float(np.linalg.norm(second))
    if float(np.linalg.norm(first - second)) >= SAME * size:
        return None
    worse, better = sorted((output, embedding), key=_bits)
    return better.name, worse.name


def weights(file: Path, reader: GGUFReader, skip: str | None = None) -> dict[str, Tensor]:
    """Return a file's weights in bfloat16 by the names that transformers has for Qwen2.

    Args:
        skip: A tensor that is left out.

    Raises:
        ConfigError: The file holds a tensor that Qwen2 does not have.
    """
    import torch

    chosen = [index for index, tensor in enumerate(reader.tensors) if tensor.name != skip]
    jobs: list[tuple[str, int, int, int]] = []
    for index in chosen:
        data = reader.tensors[index].data
        rows = data.shape[0] if data.ndim == 2 else 1
        jobs += [
            (str(file), index, first, min(rows, first + ROWS)) for first in range(0, rows, ROWS)
        ]
    arrays: dict[int, Any] = {}
    for index in chosen:
        arrays[index] = np.empty(int(reader.tensors[index].n_elements), np.uint16)
    filled = dict.fromkeys(chosen, 0)
    workers = min(len(os.sched_getaffinity(0)), len(jobs))
    # A new interpreter for each worker: a fork of a process with torch's threads may hang.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=context) as pool:
        for (_, index, _, _), bits in zip(jobs, pool.map(_job, jobs), strict=True):
            begin = filled[index]
            filled[index] = begin + bits.size
            arrays[index][begin : filled[index]] = bits
    state: dict[str, Tensor] = {}
    for index in chosen:
        tensor = reader.tensors[index]
        shape = [int(size) for size in reversed(tensor.shape)]
        bits = torch.from_numpy(arrays[index].view(np.int16).reshape(shape))
        state[_name(tensor.name)] = bits.view(torch.bfloat16)
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
    return dequantize(data, tensor.tensor_type).astype(np.float32)


def _job(job: tuple[str, int, int, int]) -> Any:
    """Return some rows of a tensor as bfloat16, rounded to nearest, ties to even."""
    file, index, first, last = job
    bits = _values(_reader(file).tensors[index], first, last).reshape(-1).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


@cache
def _reader(file: str) -> GGUFReader:
    from gguf import GGUFReader

    return GGUFReader(file)


def parameters(state: Mapping[str, Tensor]) -> int:
    """Return how many weights there are."""
    return sum(weight.numel() for weight in state.values())

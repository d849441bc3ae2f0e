"""Compute a prompt that several rows share once; every row that continues it attends to that copy.

The rollouts of a task send the same prompts, so most tokens of an update exist several times. Rows
that begin with the same tokens form a tree: each row computes only the tokens after the prefix that
it shares with a row before it, and its attention reads the keys and values of its whole path.
Everything else in the model treats each token by itself, so log probabilities, entropies and
gradients equal those of unshared rows up to rounding.

Rows are compared by their token ids. A causal model computes the same for equal prefixes at equal
positions, whichever task, role or rollout they come from.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

Ids = NDArray[np.int64]
"""Token ids of one row."""


@dataclass(frozen=True, slots=True)
class SharedLayout:
    """Places the distinct tokens of a pass end to end, and the keys that each row attends to.

    Attributes:
        computed: Positions among all tokens of the pass that are computed, in their new order,
            `[computed tokens]`.
        placed: Index of the computed token for each token of the pass, `[tokens]`.
        keys: Computed tokens on the path of every row, row after row, `[tokens]`.
        query_sizes: Tokens that each row computes, in the order of `computed`; at least 1.
        key_sizes: Tokens of each row's path, in the same order.
    """

    computed: torch.Tensor
    placed: torch.Tensor
    keys: torch.Tensor
    query_sizes: list[int]
    key_sizes: list[int]


def sorted_rows(rows: Sequence[Ids]) -> tuple[list[int], list[int]]:
    """Return the row numbers in lexicographic order, and the prefix shared with the row before.

    In this order the longest prefix that a row shares with any earlier row is the one shared with
    its predecessor. At least one token of each row is left unshared, so that no row is empty.
    """
    # Big-endian bytes sort as the token ids do.
    order = sorted(range(len(rows)), key=lambda number: rows[number].astype(">u4").tobytes())
    shared = []
    previous: Ids = np.empty(0, dtype=np.int64)
    for number in order:
        row = rows[number]
        shared.append(min(_common_prefix(previous, row), len(row) - 1))
        previous = row
    return order, shared


def _common_prefix(first: Ids, second: Ids) -> int:
    length = min(len(first), len(second))
    different = np.flatnonzero(first[:length] != second[:length])
    return int(different[0]) if len(different) else length


def shared_layout(rows: Sequence[Ids]) -> SharedLayout:
    """Return the layout of one pass.

    Args:
        rows: Token ids of each row, in the order in which they are packed.
    """
    lengths = [len(row) for row in rows]
    starts = np.concatenate(([0], np.cumsum(lengths)))
    placed = np.empty(int(starts[-1]), dtype=np.int64)
    computed, keys, query_sizes, key_sizes = [], [], [], []
    path: Ids = np.empty(0, dtype=np.int64)
    size = 0
    order, shared = sorted_rows(rows)
    for number, prefix in zip(order, shared, strict=True):
        start, end = int(starts[number]), int(starts[number + 1])
        own = end - start - prefix
        path = np.concatenate((path[:prefix], np.arange(size, size + own)))
        placed[start:end] = path
        computed.append(np.arange(start + prefix, end))
        keys.append(path)
        query_sizes.append(own)
        key_sizes.append(end - start)
        size += own
    return SharedLayout(
        computed=torch.from_numpy(np.concatenate(computed)),
        placed=torch.from_numpy(placed),
        keys=torch.from_numpy(np.concatenate(keys)),
        query_sizes=query_sizes,
        key_sizes=key_sizes,
    )


def passes(rows: Sequence[Ids], tokens: int, at_least: int = 1) -> list[list[int]]:
    """Divide rows among passes of at most `tokens` computed tokens, so that shared prefixes meet.

    Args:
        rows: Token ids of each row.
        tokens: Computed tokens of one pass; a row that is longer has a pass to itself.
        at_least: The number of passes to return, where there are as many rows.

    Returns:
        Row numbers of each pass.
    """
    order, shared = sorted_rows(rows)
    found: list[list[int]] = []
    computed = 0
    for number, prefix in zip(order, shared, strict=True):
        own = len(rows[number]) - prefix
        if not found or computed + own > tokens:
            # The first row of a pass finds no prefix there.
            found.append([])
            own = len(rows[number])
            computed = 0
        found[-1].append(number)
        computed += own
    while len(found) < at_least and max(map(len, found)) > 1:
        largest = max(range(len(found)), key=lambda index: len(found[index]))
        half = len(found[largest]) // 2
        found[largest : largest + 1] = [found[largest][:half], found[largest][half:]]
    return found


def rows_of(packed: Any) -> list[Ids]:
    """Return the rows of a jagged tensor of token ids on the host."""
    values = packed.values().cpu().numpy().astype(np.int64)
    ends = packed.offsets()[1:-1].cpu().numpy()
    return list(np.split(values, ends))


def plain_positions(position_ids: Any) -> bool:
    """Return whether the positions of every row count from 0, as a shared prefix requires."""
    if position_ids.dim() == 3:
        return False
    offsets = position_ids.offsets()
    sizes = offsets.diff()
    counted = torch.arange(int(offsets[-1]), device=offsets.device)
    counted = counted - offsets[:-1].repeat_interleave(sizes)
    return bool((position_ids.values() == counted).all())


def attention_options(layout: SharedLayout, device: torch.device) -> dict[str, Any]:
    """Return what the attention of shared rows needs, as options of a model's forward pass."""
    queries = torch.tensor([0, *np.cumsum(layout.query_sizes).tolist()])
    keys = torch.tensor([0, *np.cumsum(layout.key_sizes).tolist()])
    return {
        "cu_seqlens": queries.to(device),
        "cu_seqlens_cpu": queries,
        "key_rows": layout.keys.to(device),
        "cu_seqlens_keys": keys.to(device),
        "cu_seqlens_keys_cpu": keys,
    }

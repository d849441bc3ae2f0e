"""Causal attention of each sequence by itself, in shapes that depend on that sequence alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention

_UNKNOWN = ("softcap", "s_aux")
"""Options of attention that some models use and that are not supported here."""


def unknown(options: Mapping[str, object]) -> str:
    """Return the unsupported options of attention that a model uses, or empty text."""
    for name in _UNKNOWN:
        if options.get(name) is not None:
            return name
    return ""


def attend(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    scale: float | None,
    window: int | None,
) -> torch.Tensor:
    """Compute causal attention of one sequence for all its tokens or its last ones.

    Args:
        query: `[1, heads, query tokens, width]`.
        keys: `[1, key heads, tokens, width]`, where the number of key heads divides that of heads;
            `values` alike.
        window: Tokens that a token sees, itself included; None for all before it.

    Returns:
        `[1, heads, query tokens, width]`.
    """
    query_tokens, tokens = query.shape[2], keys.shape[2]
    near = None
    if window is not None and window < tokens and query_tokens == 1:
        # One query sees only the window's keys, so that no mask is needed.
        keys = keys.narrow(2, tokens - window, window)
        values = values.narrow(2, tokens - window, window)
    elif (window is not None and window < tokens) or 1 < query_tokens < tokens:
        # The last query sees all keys: the diagonal ends at the bottom right.
        visible = torch.ones(query_tokens, tokens, dtype=torch.bool, device=query.device)
        near = visible.tril(tokens - query_tokens)
        if window is not None:
            near = near.triu(tokens - query_tokens + 1 - window)
    return scaled_dot_product_attention(
        query,
        keys,
        values,
        attn_mask=near,
        is_causal=near is None and query_tokens > 1,
        scale=scale,
        enable_gqa=query.shape[1] != keys.shape[1],
    )


def attention_by_row(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    sizes: Sequence[int],
    scale: float | None,
    window: int | None,
    key_sizes: Sequence[int] | None = None,
) -> torch.Tensor:
    """Attend within each row, `[1, heads, tokens, width]` -> `[1, tokens, heads, width]`.

    Args:
        sizes: Query tokens of each row.
        key_sizes: Keys of each row, the last of which are those of its queries. None: as many keys
            as queries.
    """
    key_sizes = sizes if key_sizes is None else key_sizes
    rows = zip(
        query.split(sizes, 2), keys.split(key_sizes, 2), values.split(key_sizes, 2), strict=True
    )
    return torch.cat([attend(*row, scale, window) for row in rows], 2).transpose(1, 2)


class _Gather(torch.autograd.Function):
    """Selects tokens of `[1, heads, tokens, width]`, possibly repeated; sums gradients in fp32.

    A token of a shared prefix collects the gradients of hundreds of rows, and bf16 would round each
    addition.
    """

    @staticmethod
    def forward(context: Any, given: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        context.save_for_backward(index)
        context.tokens = given.shape[2]
        return given.index_select(2, index)

    @staticmethod
    def backward(context: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        (index,) = context.saved_tensors
        above = gradients[0]
        shape = (*above.shape[:2], context.tokens, above.shape[3])
        total = torch.zeros(shape, dtype=torch.float32, device=above.device)
        total.index_add_(2, index, above.float())
        return total.to(above.dtype), None


def packed(
    module: torch.nn.Module,
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    attention_mask: torch.Tensor | None = None,
    *,
    cu_seqlens: torch.Tensor,
    cu_seqlens_cpu: torch.Tensor,
    key_rows: torch.Tensor | None = None,
    cu_seqlens_keys: torch.Tensor | None = None,
    cu_seqlens_keys_cpu: torch.Tensor | None = None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    **more: Any,
) -> tuple[torch.Tensor, None]:
    """Compute causal attention within each row of packed rows, as transformers calls it.

    In lower precision on a GPU it is one kernel; in fp32, and on a CPU, it takes rows one by one.

    Args:
        query: `[1, heads, tokens, width]`; the number of heads in `keys` and `values` divides it.
        cu_seqlens: Where each row begins, and the last one ends, `[rows + 1]`; `cu_seqlens_cpu` the
            same on the host.
        key_rows: Where rows share prefixes, the tokens that each row attends to, row after row,
            `[keys]`; the last ones of a row are those that it computes. None: each row attends to
            its own tokens.
        cu_seqlens_keys: Where the keys of each row begin in `key_rows`, `[rows + 1]`;
            `cu_seqlens_keys_cpu` the same on the host.
        sliding_window: Tokens that a token sees, itself included.

    Returns:
        `[1, tokens, heads, width]`, and no weights.

    Raises:
        NotImplementedError: The model asks for an option that is not supported here.
    """
    if asked := unknown(more):
        raise NotImplementedError(
            f"packed rows know no {asked}, which {type(module).__name__} asks for: "
            "pad them instead, with --set train.packed=false"
        )
    ends, ends_cpu = cu_seqlens, cu_seqlens_cpu
    if key_rows is not None:
        assert cu_seqlens_keys is not None and cu_seqlens_keys_cpu is not None
        keys, values = _Gather.apply(keys, key_rows), _Gather.apply(values, key_rows)
        ends, ends_cpu = cu_seqlens_keys, cu_seqlens_keys_cpu
    if query.device.type == "cpu" or query.dtype == torch.float32:
        sizes, key_sizes = cu_seqlens_cpu.diff().tolist(), ends_cpu.diff().tolist()
        return attention_by_row(
            query, keys, values, sizes, scaling, sliding_window, key_sizes
        ), None
    from torch.nn.attention.varlen import varlen_attn

    groups = query.shape[1] // keys.shape[1]
    # With fewer key heads than heads, varlen_attn returns wrong results without an error.
    found = varlen_attn(
        query[0].transpose(0, 1),
        keys[0].transpose(0, 1).repeat_interleave(groups, 1),
        values[0].transpose(0, 1).repeat_interleave(groups, 1),
        cu_seqlens.to(torch.int32),
        ends.to(torch.int32),
        int(cu_seqlens_cpu.diff().max()),
        int(ends_cpu.diff().max()),
        scale=scaling,
        # Aligned at the bottom right: the last query of a row sees all of its keys.
        window_size=(-1 if sliding_window is None else sliding_window - 1, 0),
    )
    assert isinstance(found, torch.Tensor)  # one result, as no sums were requested
    return found.unsqueeze(0), None

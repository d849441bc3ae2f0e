"""Causal attention of sequences, each by itself: its shapes are its own, whatever else is computed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention

_UNKNOWN = ("softcap", "s_aux")
"""What some models ask of attention that is not computed here."""


def unknown(options: Mapping[str, object]) -> str:
    """What a model asks of attention that is not computed here, or nothing."""
    return next((name for name in _UNKNOWN if options.get(name) is not None), "")


def attend(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    scale: float | None,
    window: int | None,
) -> torch.Tensor:
    """Causal attention of one sequence, of all its tokens or of its last one.

    Args:
        query: `[1, heads, asking tokens, width]`.
        keys: With as many heads or a divisor of it, `[1, key heads, tokens, width]`; `values` alike.
        window: Tokens that a token sees, itself included; None for all before it.

    Returns:
        `[1, heads, asking tokens, width]`.
    """
    asking, tokens = query.shape[2], keys.shape[2]
    near = None
    if window is not None and window < tokens:
        if asking == 1:
            keys, values = (one.narrow(2, tokens - window, window) for one in (keys, values))
        else:
            near = (
                torch.ones(tokens, tokens, dtype=torch.bool, device=query.device)
                .tril()
                .triu(1 - window)
            )
    return scaled_dot_product_attention(
        query,
        keys,
        values,
        attn_mask=near,
        is_causal=near is None and asking > 1,
        scale=scale,
        enable_gqa=query.shape[1] != keys.shape[1],
    )


def attention_by_row(
    asking: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    sizes: Sequence[int],
    scale: float | None,
    window: int | None,
) -> torch.Tensor:
    """Causal attention within each row, `[1, heads, tokens, width]` -> `[1, tokens, heads, width]`."""
    rows = zip(asking.split(sizes, 2), keys.split(sizes, 2), values.split(sizes, 2), strict=True)
    return torch.cat([attend(*row, scale, window) for row in rows], 2).transpose(1, 2)


def packed(
    module: torch.nn.Module,
    asking: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    attention_mask: torch.Tensor | None = None,
    *,
    cu_seqlens: torch.Tensor,
    cu_seqlens_cpu: torch.Tensor,
    scaling: float | None = None,
    sliding_window: int | None = None,
    **more: Any,
) -> tuple[torch.Tensor, None]:
    """Causal attention within each row of a pass in which rows stand end to end; a kind of attention for transformers.

    In lower precision on a GPU it is one kernel; in fp32, and on a CPU, rows are attended to one by one.

    Args:
        asking: `[1, heads, tokens, width]`; `keys` and `values` with as many heads or a divisor of it.
        cu_seqlens: Where each row begins, and the last one ends, `[rows + 1]`; `cu_seqlens_cpu` the same on the host.
        sliding_window: Tokens that a token sees, itself included.

    Returns:
        `[1, tokens, heads, width]`, and no weights.

    Raises:
        NotImplementedError: The model asks for something that is not known here.
    """
    if asked := unknown(more):
        raise NotImplementedError(
            f"packed rows know no {asked}, which {type(module).__name__} asks for: pad them instead, with "
            "--set train.packed=false"
        )
    if asking.device.type == "cpu" or asking.dtype == torch.float32:
        sizes = cu_seqlens_cpu.diff().tolist()
        return attention_by_row(asking, keys, values, sizes, scaling, sliding_window), None
    from torch.nn.attention.varlen import varlen_attn

    groups = asking.shape[1] // keys.shape[1]
    longest = int(cu_seqlens_cpu.diff().max())
    rows = cu_seqlens.to(torch.int32)
    found = varlen_attn(  # as many key heads as heads: with fewer it gives something else, and does not say so
        asking[0].transpose(0, 1),
        keys[0].transpose(0, 1).repeat_interleave(groups, 1),
        values[0].transpose(0, 1).repeat_interleave(groups, 1),
        rows,
        rows,
        longest,
        longest,
        scale=scaling,
        window_size=(-1 if sliding_window is None else sliding_window - 1, 0),
    )
    assert isinstance(found, torch.Tensor)  # it was not asked for sums
    return found.unsqueeze(0), None

"""Causal attention of one sequence by itself: its shapes are its own, whatever else is computed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention

_UNKNOWN = ("softcap", "s_aux")
"""What some models ask of attention that is not computed here."""


def unknown(options: Mapping[str, Any]) -> str:
    """What a model asks of attention that is not computed here, or nothing."""
    return next((name for name in _UNKNOWN if options.get(name) is not None), "")


def attend(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scale: float | None, window: int | None
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
            near = torch.ones(tokens, tokens, dtype=torch.bool, device=query.device).tril().triu(1 - window)
    return scaled_dot_product_attention(
        query,
        keys,
        values,
        attn_mask=near,
        is_causal=near is None and asking > 1,
        scale=scale,
        enable_gqa=query.shape[1] != keys.shape[1],
    )

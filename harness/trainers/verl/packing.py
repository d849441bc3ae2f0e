"""Rows end to end instead of padded, without flash-attention; importing this gives it to verl (`external_lib`).

verl packs rows where padding is removed, and asks for flash-attention because of what then keeps them apart. torch has
that too: `varlen_attn`, the same kernels. On a CPU, and in fp32, rows are attended to one by one. Logits are made
for the tokens of replies alone, which are a fifth of a row.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.attention.varlen import varlen_attn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface
from transformers.masking_utils import AttentionMaskInterface
from verl.utils import tensordict_utils
from verl.workers.engine.base import EngineRegistry
from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead

from harness.trainers.verl import logprobs  # noqa: F401  (for its effect)
from harness.trainers.verl.names import PACKED

UNKNOWN = ("softcap", "s_aux")
"""What some models ask of attention beyond a window."""


def attention(
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
    """Causal attention within each row.

    Args:
        asking: `[1, heads, tokens, width]`; `keys` and `values` with as many heads or a divisor of it.
        cu_seqlens: Where each row begins, and the last one ends, `[rows + 1]`; `cu_seqlens_cpu` the same on the host.
        sliding_window: Tokens that a token sees, itself included.

    Returns:
        `[1, tokens, heads, width]`, and no weights.

    Raises:
        NotImplementedError: The model asks for something that is not known here.
    """
    if asked := [name for name in UNKNOWN if more.get(name) is not None]:
        raise NotImplementedError(
            f"packed rows know no {asked[0]}, which {type(module).__name__} asks for: pad them instead, with "
            "--set train.packed=false"
        )
    if asking.device.type == "cpu" or asking.dtype == torch.float32:
        return _by_row(asking, keys, values, cu_seqlens_cpu, scaling, sliding_window), None
    groups = asking.shape[1] // keys.shape[1]
    longest = int(cu_seqlens_cpu.diff().max())
    rows = cu_seqlens.to(torch.int32)
    found = varlen_attn(
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
    return found.unsqueeze(0), None


def _by_row(
    asking: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    ends: torch.Tensor,
    scale: float | None,
    window: int | None,
) -> torch.Tensor:
    found = []
    sizes = ends.diff().tolist()
    for q, k, v in zip(asking.split(sizes, 2), keys.split(sizes, 2), values.split(sizes, 2), strict=True):
        near = None
        if window is not None and window < q.shape[2]:
            near = torch.ones(q.shape[2], q.shape[2], dtype=torch.bool, device=q.device).tril().triu(1 - window)
        found.append(
            scaled_dot_product_attention(
                q, k, v, attn_mask=near, is_causal=near is None, scale=scale, enable_gqa=q.shape[1] != k.shape[1]
            )
        )
    return torch.cat(found, 2).transpose(1, 2)


AttentionInterface.register(PACKED, attention)
AttentionMaskInterface.register(PACKED, lambda *_, **__: None)


class PackedEngine(FSDPEngineWithLMHead):
    """verl's FSDP engine, which tells attention where rows begin and makes logits for replies alone."""

    _kept: tuple[torch.Tensor, int] | None = None
    """Positions whose logits are made, and the number of tokens, while packed rows are in the model."""

    def prepare_model_inputs(self, micro_batch: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        """verl's, with the positions that logits are asked for."""
        self.pass_packed_cu_seqlens = self.module.config._attn_implementation == PACKED
        inputs, outputs = super().prepare_model_inputs(micro_batch)
        self._kept = None
        packed, fused = (
            tensordict_utils.get_non_tensor_data(micro_batch, key=key, default=default)
            for key, default in (("use_remove_padding", True), ("use_fused_kernels", False))
        )
        if packed and not fused and not self.use_ulysses_sp and not outputs["pad_size"]:
            ends = micro_batch["input_ids"].offsets()[1:]
            positions = torch.arange(inputs["input_ids"].shape[1], device=ends.device)
            row = torch.searchsorted(ends, positions, right=True)
            first = (ends - micro_batch["responses"].offsets().diff())[row]
            kept = positions[(positions >= first - 1) & (positions < ends[row] - 1)]
            self._kept = kept, len(positions)
            inputs["logits_to_keep"] = kept
            for name in ("input_ids_rmpad_rolled", "temperature_rmpad"):
                outputs[name] = outputs[name][kept]
        return inputs, outputs

    def _gather_and_unpad_packed(self, tensor: torch.Tensor, pad_size: int) -> torch.Tensor:
        """What was found for replies in its place among all tokens, 0 elsewhere."""
        if self._kept is None:
            found: torch.Tensor = super()._gather_and_unpad_packed(tensor, pad_size)
            return found
        kept, total = self._kept
        return tensor.new_zeros(total).index_copy(0, kept, tensor)


for _engines in EngineRegistry._engines["language_model"].values():
    if _engines.get("cuda") is FSDPEngineWithLMHead:
        _engines["cuda"] = PackedEngine

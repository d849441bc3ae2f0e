"""Pack rows end to end without flash-attention; importing this gives it to verl (`external_lib`).

verl packs rows where padding is removed, and requires flash-attention to keep them apart in
attention. torch has the same kernels as `varlen_attn`. In fp32, attention takes rows one by one; on
a CPU everything is computed in this way (`row_by_row.py`). Logits are computed only for the tokens
of replies, which are a fifth of a row; a masked row has logits for one token.

Where a step is one optimizer step, the updated policy is the one that sampled: the ratio of their
probabilities is 1, and its gradient is that of the log-probability. verl's pass for the old
log-probabilities is then left out (its bypass mode). The update reports the pass's other results,
the entropy and the distance from the rollout's probabilities.

With the attention `SHARED`, rows that begin with the same tokens compute them once (`prefixes.py`),
and passes are made of rows that share most.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch.nn.functional import log_softmax
from transformers import AttentionInterface
from transformers.masking_utils import AttentionMaskInterface
from verl.trainer.ppo import core_algos
from verl.utils import tensordict_utils
from verl.utils.device import get_device_name
from verl.workers.engine.base import EngineRegistry
from verl.workers.engine.fsdp import transformer_impl
from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead
from verl.workers.utils.padding import no_padding_2_padding

from harness_policy_server.attention import packed
from harness_verl import logprobs, prefixes
from harness_verl.names import CROSS_ENTROPY, ON_POLICY, PACKED, SHARED, SUPERVISED
from harness_verl.probability_gaps import gap_metrics
from harness_verl.saving import Writer
from harness_verl.update_times import UpdateTimes

for _name in (PACKED, SHARED):
    AttentionInterface.register(_name, packed)
    AttentionMaskInterface.register(_name, lambda *_, **__: None)


@core_algos.register_policy_loss(CROSS_ENTROPY)
@core_algos.register_policy_loss(ON_POLICY)
def on_policy_loss(
    old_log_prob: torch.Tensor, log_prob: torch.Tensor, *arguments: Any, **more: Any
) -> Any:
    """Return verl's objective with the present policy as the old one, so nothing is clipped.

    The gradient is that of `-advantage * log_prob`, which with advantages of 1 is cross entropy.

    Args:
        old_log_prob: The rollout's log-probabilities, `[rows, longest reply]`; not used.
        log_prob: Of the policy that is updated, `[rows, longest reply]`.
    """
    loss, metrics = core_algos.compute_policy_loss_vanilla(
        log_prob.detach(), log_prob, *arguments, **more
    )
    return loss, metrics


@core_algos.register_policy_loss(SUPERVISED)
def supervised_loss(
    old_log_prob: torch.Tensor,
    log_prob: torch.Tensor,
    advantages: torch.Tensor,
    response_mask: torch.Tensor,
    loss_agg_mode: str = "token-mean",
    config: Any = None,
    **more: Any,
) -> Any:
    """Return the cross entropy of the trained tokens; its gradient is that of `on_policy_loss`.

    Args:
        old_log_prob: Not used: no policy sampled the tokens.
        log_prob: Of the policy that is updated, `[rows, longest reply]`.
        advantages: 1 on trained tokens, as `response_mask`, `[rows, longest reply]`.
    """
    loss = core_algos.agg_loss(
        loss_mat=-advantages * log_prob,
        loss_mask=response_mask,
        loss_agg_mode=loss_agg_mode,
        **config.global_batch_info,
    )
    return loss, {}


class PackedEngine(FSDPEngineWithLMHead):
    """verl's FSDP engine with row boundaries for attention and with logits for replies alone."""

    _kept: tuple[torch.Tensor, int] | None = None
    """Positions with logits, and the number of tokens, while packed rows are in the model."""
    rows: Mapping[int, Sequence[int]] = MappingProxyType({})
    """Numbers of tokens of the packed rows, by their sum; the same for their tokens with logits."""

    def prepare_model_inputs(self, micro_batch: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return verl's inputs, with the positions that need logits."""
        self.pass_packed_cu_seqlens = self.module.config._attn_implementation in (PACKED, SHARED)
        inputs, outputs = super().prepare_model_inputs(micro_batch)
        self._kept, self.rows = None, {}
        option = tensordict_utils.get_non_tensor_data
        packed = option(micro_batch, key="use_remove_padding", default=True)
        fused = option(micro_batch, key="use_fused_kernels", default=False)
        if packed and not fused and not self.use_ulysses_sp and not outputs["pad_size"]:
            ends = micro_batch["input_ids"].offsets()[1:]
            positions = torch.arange(inputs["input_ids"].shape[1], device=ends.device)
            row = torch.searchsorted(ends, positions, right=True)
            first = (ends - micro_batch["responses"].offsets().diff())[row]
            kept = positions[(positions >= first - 1) & (positions < ends[row] - 1)]
            asked = micro_batch["response_mask"].values().bool()
            # The last position of a row is kept in any case, so that no row is empty.
            kept = kept[asked.index_fill(0, micro_batch["responses"].offsets()[1:] - 1, True)]
            self._kept = kept, len(positions)
            self.rows = {
                len(kept): torch.bincount(row[kept]).tolist(),
                len(row): torch.bincount(row[positions]).tolist(),
            }
            inputs["logits_to_keep"] = kept
            for name in ("input_ids_rmpad_rolled", "temperature_rmpad"):
                outputs[name] = outputs[name][kept]
            if self._shares and prefixes.plain_positions(micro_batch["position_ids"]):
                self._share(inputs, micro_batch)
        return inputs, outputs

    @property
    def _shares(self) -> bool:
        return bool(self.module.config._attn_implementation == SHARED)

    def _share(self, inputs: dict[str, Any], micro_batch: Any) -> None:
        """Replace packed inputs by a layout that holds each shared prefix once."""
        layout = prefixes.shared_layout(prefixes.rows_of(micro_batch["input_ids"]))
        device = inputs["input_ids"].device
        computed = layout.computed.to(device)
        inputs["input_ids"] = inputs["input_ids"][:, computed]
        inputs["position_ids"] = inputs["position_ids"][:, computed]
        inputs["logits_to_keep"] = layout.placed.to(device)[inputs["logits_to_keep"]]
        inputs.update(prefixes.attention_options(layout, device))
        self.rows = {}

    def train_batch(self, data: Any, loss_function: Any) -> Any:
        """Run verl's optimizer step, and report the seconds of its parts (`update_times.py`)."""
        self._times = UpdateTimes()
        try:
            outputs = super().train_batch(data, loss_function)
        finally:
            times, self._times = self._times, None
        times.end("optimizer")
        outputs["metrics"].update(times.metrics())
        return outputs

    _times: UpdateTimes | None = None
    """Times of the running optimizer step."""

    def forward_backward_batch(self, data: Any, *arguments: Any, **options: Any) -> Any:
        """Run verl's passes; with shared prefixes, over rows that share them."""
        dynamic = tensordict_utils.get_non_tensor_data(
            data=data, key="use_dynamic_bsz", default=True
        )
        with _passes_by_prefix() if self._shares and dynamic else nullcontext():
            outputs = super().forward_backward_batch(data, *arguments, **options)
        if self._times is not None:
            self._times.end("passes")
        return outputs

    def prepare_model_outputs(
        self, output: Any, output_args: Any, micro_batch: Any, logits_processor_func: Any
    ) -> dict[str, Any]:
        """Return verl's outputs, with entropies if no earlier pass reports them."""
        found: dict[str, Any] = super().prepare_model_outputs(
            output, output_args, micro_batch, logits_processor_func
        )
        alone = (ON_POLICY, SUPERVISED)
        if self._kept and _loss_mode(logits_processor_func) in alone and "entropy" not in found:
            with torch.no_grad():
                sizes = logprobs.pieces(output.logits[0])
                chunks = zip(
                    output.logits[0].split(sizes),
                    output_args["temperature_rmpad"].split(sizes),
                    strict=True,
                )
                entropies = []
                for logits, heat in chunks:
                    entropies.append(_entropy(logits.float() / heat[:, None]))
                values = torch.cat(entropies)
            found["entropy"] = torch.nested.nested_tensor_from_jagged(
                self._gather_and_unpad_packed(values, 0), micro_batch["input_ids"].offsets()
            )
        return found

    def forward_step(self, micro_batch: Any, loss_function: Any, forward_only: bool) -> Any:
        """Run verl's step, and measure how far the rollout's probabilities are from the trainer's.

        This happens only if no earlier pass reports the distance.
        """
        if self._times is not None:
            self._times.end("divide")
        loss, output = super().forward_step(micro_batch, loss_function, forward_only)
        if _loss_mode(loss_function) == ON_POLICY:
            ours = no_padding_2_padding(output["model_output"]["log_probs"], micro_batch)
            output["metrics"].update(gap_metrics(ours, micro_batch))
        return loss, output

    def optimizer_step(self) -> Any:
        """Run verl's step; after the first one the size of a checkpoint is known."""
        found = super().optimizer_step()
        if self._writes_later and self._writer is None and self.optimizer.state:
            self._writer = Writer(torch.distributed.get_rank())
            self._writer.prepare(self._saved_tensors())
        return found

    def _saved_tensors(self) -> Iterator[torch.Tensor]:
        """Yield the tensors of a checkpoint, with the sizes that they have on this worker."""
        saved = self.checkpoint_manager
        if saved.should_save_model and not saved.should_save_lora_only:
            yield from self.module.parameters()
            yield from self.module.buffers()
        if saved.should_save_optimizer:
            for state in self.optimizer.state.values():
                yield from (value for value in state.values() if isinstance(value, torch.Tensor))

    _writer: Writer | None = None

    @property
    def _writes_later(self) -> bool:
        settings = self.checkpoint_config
        return settings is not None and bool(settings.get("async_save", False))

    def save_checkpoint(
        self,
        local_path: str,
        hdfs_path: str | None = None,
        global_step: int = 0,
        max_ckpt_to_keep: int | None = None,
        **more: Any,
    ) -> None:
        """Save verl's checkpoint, without the attention name that only this module knows.

        With `async_save` the files are written after this returns (`saving.py`).
        """
        if not self._writes_later:
            self._save_now(local_path, hdfs_path, global_step, max_ckpt_to_keep, **more)
            return
        if self._writer is None:
            self._writer = Writer(torch.distributed.get_rank())
        with self._writer.collecting(Path(local_path)):
            # The trainer, not this worker, removes older checkpoints, once this one is whole.
            self._save_now(local_path, hdfs_path, global_step, None, **more)

    def _save_now(self, *arguments: Any, **more: Any) -> None:
        config = self.module.config
        own = {}
        for name in ("_attn_implementation", "attn_implementation"):
            attention = getattr(config, name, "")
            if attention in (PACKED, SHARED):
                own[name] = attention
        for name in own:
            setattr(config, name, "sdpa")
        try:
            super().save_checkpoint(*arguments, **more)
        finally:
            for name, attention in own.items():
                setattr(config, name, attention)

    def _gather_and_unpad_packed(self, tensor: torch.Tensor, pad_size: int) -> torch.Tensor:
        """Return the values of replies in their places among all tokens, with 0 elsewhere."""
        if self._kept is None:
            found: torch.Tensor = super()._gather_and_unpad_packed(tensor, pad_size)
            return found
        kept, total = self._kept
        return tensor.new_zeros(total).index_copy(0, kept, tensor)


def passes_by_prefix(
    data: Any, dp_group: Any = None, same_micro_num_in_dp: bool = True, **_: Any
) -> tuple[list[Any], list[list[int]]]:
    """Divide rows among passes by shared prefixes, in place of verl's `prepare_micro_batches`.

    Args:
        data: Rows of one optimizer step of one device, with `max_token_len_per_gpu`, the computed
            tokens of a pass.
        dp_group: The devices that share the step's rows; all make the same number of passes.

    Returns:
        The passes, and the numbers of the rows in each.
    """
    rows = prefixes.rows_of(data["input_ids"])
    tokens = int(tensordict_utils.get_non_tensor_data(data, "max_token_len_per_gpu", None))
    divided = prefixes.passes(rows, tokens)
    if same_micro_num_in_dp and dp_group is not None and torch.distributed.is_initialized():
        count = torch.tensor([len(divided)], device=get_device_name())
        torch.distributed.all_reduce(count, op=torch.distributed.ReduceOp.MAX, group=dp_group)
        divided = prefixes.passes(rows, tokens, at_least=int(count))
    return [tensordict_utils.index_select_tensor_dict(data, part) for part in divided], divided


@contextmanager
def _passes_by_prefix() -> Iterator[None]:
    original: Callable[..., Any] = transformer_impl.prepare_micro_batches
    transformer_impl.prepare_micro_batches = passes_by_prefix
    try:
        yield
    finally:
        transformer_impl.prepare_micro_batches = original


def _loss_mode(loss_function: object) -> str:
    """Return the name of verl's policy loss; empty for other losses."""
    config = getattr(loss_function, "keywords", {}).get("config")
    return "" if config is None else str(config.policy_loss.loss_mode)


def _entropy(logits: torch.Tensor) -> torch.Tensor:
    logs = log_softmax(logits.float(), -1)
    return -(logs.exp() * logs).sum(-1)


for _engines in EngineRegistry._engines["language_model"].values():
    if _engines.get("cuda") is FSDPEngineWithLMHead:
        _engines["cuda"] = PackedEngine

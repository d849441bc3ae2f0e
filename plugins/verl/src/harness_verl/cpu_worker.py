"""Prepare a verl worker for a CPU; `actor_rollout_ref.model.external_lib` names this module."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from verl.utils.fsdp_utils import merged_lora_context, normalize_peft_param_name
from verl.workers.engine.base import EngineRegistry

from harness_verl import cpu_rollout, logprobs
from harness_verl.packing import PackedEngine
from harness_verl.row_by_row import take_rows_apart

cpu_rollout.register()

if "cpu" not in EngineRegistry._engines.get("language_model", {}).get("fsdp2", {}):

    @EngineRegistry.register(model_type="language_model", backend=["fsdp2"], device="cpu")
    class CpuFSDP2Engine(PackedEngine):
        """verl's FSDP2 engine for a CPU, on which packed rows are computed one by one."""

        compute_entropy_from_logits: Callable[..., torch.Tensor]

        def _build_fsdp_module(self, module: object) -> Any:
            self.take_rows_apart(module)
            return super()._build_fsdp_module(module)

        def take_rows_apart(self, module: Any) -> None:
            """Let a model and what is made of its logits take packed rows one by one."""
            take_rows_apart(module, lambda: self.rows)
            entropy: Callable[..., torch.Tensor] = self.compute_entropy_from_logits

            def entropy_by_pieces(logits: torch.Tensor, **options: Any) -> torch.Tensor:
                parts = []
                for some in logits.split(logprobs.pieces(logits)):
                    parts.append(entropy(some, **options))
                return torch.cat(parts)

            self.compute_entropy_from_logits = entropy_by_pieces

        def prepare_model_outputs(
            self, output: Any, *arguments: Any, **options: Any
        ) -> dict[str, Any]:
            """Return verl's outputs, computed row by row."""
            with logprobs.row_by_row(self.rows.get(output.logits.shape[1], ())):
                return super().prepare_model_outputs(output, *arguments, **options)

        def get_per_tensor_param(self, *args: Any, **kwargs: Any) -> Any:
            """Return names and tensors for the policy server.

            Merged LoRA weights stay in fp32; verl would round them to bf16.
            """
            return (
                (self._merged(), None)
                if self._is_lora
                else super().get_per_tensor_param(*args, **kwargs)
            )

        def _merged(self) -> Iterator[tuple[str, Any]]:
            with merged_lora_context(
                self.module, backup_adapters=True
            ):  # the receiver copies while this is open
                for name, tensor in normalize_peft_param_name(self.module.state_dict()).items():
                    yield name, tensor.full_tensor()

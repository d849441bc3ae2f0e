"""What a verl worker needs to train and roll out on a CPU; named by `actor_rollout_ref.model.external_lib`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from verl.utils.fsdp_utils import merged_lora_context, normalize_peft_param_name
from verl.workers.engine.base import EngineRegistry

from harness.trainers.verl import cpu_rollout
from harness.trainers.verl.packing import PackedEngine

cpu_rollout.register()

if "cpu" not in EngineRegistry._engines.get("language_model", {}).get("fsdp2", {}):

    @EngineRegistry.register(model_type="language_model", backend=["fsdp2"], device="cpu")
    class CpuFSDP2Engine(PackedEngine):
        """verl's FSDP2 engine, registered for the CPU."""

        def get_per_tensor_param(self, *args: Any, **kwargs: Any) -> Any:
            """Names and tensors for the policy server; merged LoRA weights in fp32, where verl rounds them to bf16."""
            return (self._merged(), None) if self._is_lora else super().get_per_tensor_param(*args, **kwargs)

        def _merged(self) -> Iterator[tuple[str, Any]]:
            with merged_lora_context(self.module, backup_adapters=True):  # the receiver copies while this is open
                for name, tensor in normalize_peft_param_name(self.module.state_dict()).items():
                    yield name, tensor.full_tensor()

"""What a verl worker needs to train and roll out on a CPU; named by `actor_rollout_ref.model.external_lib`."""

from __future__ import annotations

from verl.workers.engine.base import EngineRegistry
from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead

from harness.trainers.verl import cpu_rollout

cpu_rollout.register()

if "cpu" not in EngineRegistry._engines.get("language_model", {}).get("fsdp2", {}):

    @EngineRegistry.register(model_type="language_model", backend=["fsdp2"], device="cpu")
    class CpuFSDP2Engine(FSDPEngineWithLMHead):
        """verl's FSDP2 engine as it is; only its registration names the device."""

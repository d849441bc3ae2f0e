"""Load verl's checkpoints as models: merged into a folder, or as they were trained."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from harness.errors import RunFailed, UserError, last_line


def export(checkpoint: Path, target: Path) -> None:
    """Write a checkpoint (FSDP shards, LoRA merged) in bf16 for transformers and vLLM.

    Raises:
        UserError: The target exists and is not empty.
        RunFailed: verl's merger failed; the message has its last line.
    """
    if target.exists() and any(target.iterdir()):
        raise UserError(f"{target} exists and is not empty; choose another folder")
    temporary = target.with_name(f".{target.name}.partial")
    shutil.rmtree(temporary, ignore_errors=True)
    command = [sys.executable, "-m", "verl.model_merger", "merge", "--backend", "fsdp"]
    command += ["--local_dir", str(checkpoint / "actor"), "--target_dir", str(temporary)]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
    done = subprocess.run(
        command, capture_output=True, encoding="utf-8", errors="replace", env=environment
    )
    if done.returncode != 0 or not (temporary / "config.json").is_file():
        raise RunFailed(
            f"merging {checkpoint} failed: {last_line(done.stderr or done.stdout)[:300]}"
        )
    if (temporary / "lora_adapter").is_dir():
        _merge_adapter(temporary)
    if target.exists():
        target.rmdir()
    target.parent.mkdir(parents=True, exist_ok=True)
    os.replace(temporary, target)


def _merge_adapter(folder: Path) -> None:
    """Merge the adapter, which verl's merger saves separately, into the weights."""
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM, logging

    logging.disable_progress_bar()
    adapter = folder / "lora_adapter"
    base = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    merged = PeftModel.from_pretrained(base, str(adapter)).merge_and_unload()
    merged.to(torch.bfloat16).save_pretrained(folder)
    shutil.rmtree(adapter)


def trained_policy(checkpoint: Path) -> Any:
    """Return the model of a checkpoint, from verl's FSDP shards, in fp32."""
    import torch
    from accelerate import init_empty_weights  # type: ignore[import-untyped]
    from transformers import AutoConfig, AutoModelForCausalLM

    actor = checkpoint / "actor"
    world = json.loads((actor / "fsdp_config.json").read_text())["world_size"]
    shards = []
    for rank in range(world):
        file = actor / f"model_world_size_{world}_rank_{rank}.pt"
        shards.append(torch.load(file, map_location="cpu", weights_only=False))
    weights = {}
    for name in shards[0]:
        weights[name] = _whole([shard[name] for shard in shards]).float()
    adapter = actor / "lora_train_meta.json"
    with init_empty_weights():
        model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(actor / "huggingface"))
        if adapter.is_file():
            from peft import LoraConfig, get_peft_model

            # verl's record of the adapter does not name its layers, but the weights do.
            targets = set()
            for name in weights:
                if ".lora_A." in name:
                    targets.add(name.split(".")[-4])
            adapter_config = LoraConfig(
                **json.loads(adapter.read_text()), target_modules=sorted(targets)
            )
            model = get_peft_model(model, adapter_config)
    model.load_state_dict(weights, assign=True)
    return model.eval()


def _whole(shards: list[Any]) -> Any:
    """Return one tensor from its shards; a plain tensor is the same in all."""
    import torch
    from torch.distributed.tensor import DTensor, Shard

    first = shards[0]
    if not isinstance(first, DTensor):
        return first
    placement = first.placements[-1]
    local = [shard.to_local() for shard in shards]
    # A replicated tensor is whole on every rank, so any of them has it.
    return torch.cat(local, placement.dim) if isinstance(placement, Shard) else local[0]

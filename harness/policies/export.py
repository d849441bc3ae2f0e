"""Checkpoints as Hugging Face folders."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from harness.errors import RunFailed, UserError
from harness.plugins import load, trainer_spec
from harness.results.folder import RunFolder


def checkpoint_dir(folder: RunFolder, step: int | None = None) -> tuple[int, Path]:
    """Step and folder of a run's checkpoint, by default the newest.

    Raises:
        UserError: There is no such checkpoint; the message names those there are.
    """
    there = load(trainer_spec(folder.config().train.trainer))().checkpoints(folder)
    if not there:
        raise UserError(f"{folder.path} has no checkpoint; it has trained {_trained(folder)} steps")
    if step is None:
        step = max(there)
    if step not in there:
        raise UserError(
            f"{folder.path} has no checkpoint of step {step}; it has {', '.join(map(str, sorted(there)))} "
            "(train.save_every and train.keep_checkpoints say which are made and how many stay)"
        )
    return step, there[step]


def checkpoint_model(folder: RunFolder, step: int | None = None) -> Path:
    """A Hugging Face folder of a checkpoint, merged on first use and kept beside it."""
    _, checkpoint = checkpoint_dir(folder, step)
    target = checkpoint / "hf"
    if not (target / "config.json").is_file():
        export(checkpoint, target)
    return target


def export(checkpoint: Path, target: Path) -> None:
    """Write a checkpoint (FSDP shards, LoRA merged) in bf16, as a folder that transformers and vLLM load.

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
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    if done.returncode != 0 or not (temporary / "config.json").is_file():
        lines = [line for line in (done.stderr or done.stdout).splitlines() if line.strip()]
        raise RunFailed(f"merging {checkpoint} failed: {lines[-1][:300] if lines else 'no output'}")
    if (temporary / "lora_adapter").is_dir():
        _merge_adapter(temporary)
    if target.exists():
        target.rmdir()
    target.parent.mkdir(parents=True, exist_ok=True)
    os.replace(temporary, target)


def _merge_adapter(folder: Path) -> None:
    """Fold the adapter, which verl's merger leaves beside the base, into the weights."""
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    adapter = folder / "lora_adapter"
    base = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    merged = PeftModel.from_pretrained(base, str(adapter)).merge_and_unload()
    merged.to(torch.bfloat16).save_pretrained(folder)
    shutil.rmtree(adapter)


def _trained(folder: RunFolder) -> int:
    result = folder.read()["result"]
    return int(result.get("steps", 0)) if result else 0

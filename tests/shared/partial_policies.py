"""Policies that lack a part of their weights."""

from __future__ import annotations

import shutil
from pathlib import Path

from harness.policies import resolve


def without_a_tensor(folder: Path) -> str:
    """Copy pocket-sql to a folder without one tensor of a layer, and return that tensor's name."""
    from safetensors.numpy import load_file, save_file

    shutil.copytree(resolve("pocket-sql"), folder)
    weights = load_file(folder / "model.safetensors")
    absent = min(name for name in weights if "mlp" in name)
    del weights[absent]
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    return absent

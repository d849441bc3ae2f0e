"""Whether an update keeps its activations: decided by the GPU's memory and the policy's shape."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from harness.config import load_config
from harness_verl import memory
from harness_verl.compose import verl_settings

QWEN = {
    "hidden_size": 1536,
    "intermediate_size": 8960,
    "num_hidden_layers": 28,
    "vocab_size": 151936,
}
H100, H200 = 85_500_000_000, 150_000_000_000


def recomputes(
    tmp_path: Path, *overrides: str, about: dict[str, Any] = QWEN, device: str = "cuda"
) -> Any:
    (tmp_path / "config.json").write_text(json.dumps(about))
    config = load_config(
        "qwen-1.5b", agent="reference_sql", overrides=[f"device={device}", *overrides]
    )
    settings = verl_settings(
        config, device=device, model_path=str(tmp_path), run_dir=tmp_path, steps=2
    )
    return settings["actor_rollout_ref"]["model"]["enable_gradient_checkpointing"]


@pytest.mark.parametrize(
    ("overrides", "gpu", "expected"),
    [
        ([], H200, False),
        ([], H100, True),
        ([], 0, True),
        (["train.micro_batch_tokens=32768"], H200, True),
        (["gpus=4"], H100, True),
        (["train.packed=false", "train.micro_batch_size=1"], H100, False),
        (["verl.actor_rollout_ref.rollout.free_cache_engine=false"], H200, True),
        (["train.recompute=false"], 0, False),
        (["train.recompute=true"], H200, True),
        (["verl.actor_rollout_ref.model.enable_gradient_checkpointing=true"], H200, True),
    ],
)
def test_activations_are_kept_where_they_fit(
    overrides: list[str], gpu: int, expected: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "gpu_bytes", lambda: gpu)
    assert recomputes(tmp_path, *overrides) is expected


def test_a_model_of_another_make_is_computed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "gpu_bytes", lambda: H200)
    assert recomputes(tmp_path, about={"hidden_size": 64}) is True


def test_what_an_h200_reserved_is_within_the_estimate() -> None:
    needed = memory.update_bytes(QWEN, 16384, 1)
    assert needed is not None
    assert 77e9 < needed < 1.4 * 77e9
    assert memory.update_bytes(QWEN, 16384, 2) < needed  # type: ignore[operator]

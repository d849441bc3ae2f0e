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


THREE_B = QWEN | {"hidden_size": 2048, "intermediate_size": 11008, "num_hidden_layers": 36}


@pytest.mark.parametrize(
    ("about", "overrides", "gpu", "offloads", "utilisation"),
    [
        (QWEN, [], H100, False, 0.5),
        (QWEN, [], 25_000_000_000, True, 0.6),
        (QWEN, [], 0, True, 0.6),
        (THREE_B, [], H100, True, 0.6),
        (THREE_B, ["gpus=2"], H100, False, 0.5),
        (THREE_B, [], H200, False, 0.5),
        ({"hidden_size": 64}, [], H200, True, 0.6),
    ],
)
def test_state_stays_on_a_gpu_where_it_fits_beside_the_servers(
    about: dict[str, Any],
    overrides: list[str],
    gpu: int,
    offloads: bool,
    utilisation: float,
    tmp_path: Path,
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(about))
    config = load_config("qwen-1.5b", agent="reference_sql", overrides=overrides)
    chosen = memory.placement(config, {}, str(tmp_path), gpu)["actor_rollout_ref"]
    engine = chosen["actor"]["fsdp_config"]
    assert engine == {"param_offload": offloads, "optimizer_offload": offloads}
    assert chosen["rollout"] == {"gpu_memory_utilization": utilisation}


def test_the_preset_fits_one_gpu_of_80_gb_and_stated_options_win(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "gpu_bytes", lambda: H100)
    (tmp_path / "config.json").write_text(json.dumps(QWEN))

    def settings(*overrides: str) -> tuple[bool, bool, float]:
        config = load_config("qwen-1.5b", agent="reference_sql", overrides=list(overrides))
        assert config.policy.path == "qwen2.5-coder-1.5b" and config.rollout.concurrency == 128
        made = verl_settings(
            config, device="cuda", model_path=str(tmp_path), run_dir=tmp_path, steps=2
        )["actor_rollout_ref"]
        engine = made["actor"]["fsdp_config"]
        share = made["rollout"]["gpu_memory_utilization"]
        return engine["param_offload"], engine["optimizer_offload"], share

    assert settings() == (False, False, 0.5)
    actor = "verl.actor_rollout_ref.actor.fsdp_config"
    rollout = "verl.actor_rollout_ref.rollout.gpu_memory_utilization"
    assert settings(f"{actor}.optimizer_offload=true", f"{rollout}=0.3") == (False, True, 0.3)

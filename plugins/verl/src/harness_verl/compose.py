"""Turn a run's configuration into verl's, starting from verl's own defaults."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from pathlib import Path

import yaml

from harness.config import Config
from harness.errors import ConfigError
from harness.plugins import offers_tools, program, program_of
from harness.policies import tool_parser
from harness.util.parsing import at, merge
from harness_verl.isolation import HOOK
from harness_verl.limits import check, micro_batch
from harness_verl.memory import placement, recomputes
from harness_verl.names import CROSS_ENTROPY, ON_POLICY, PACKED, SHARED, SUPERVISED
from harness_verl.options import options
from harness_verl.taught import SCORE
from harness_verl.verl_config import Section, chosen

AGENT_LOOP = "harness"
SAMPLERS = {
    "sync": "PromptReplayBuffer",
    "colocate_async": "PromptReplayBufferAsync",
    "separate_async": "PromptReplayBufferAsync",
}
"""Harness's replay buffer by verl's `trainer.v1.trainer_mode`."""
_PARALLEL = {
    "tensor_model_parallel_size": "tensor_parallel_size",
    "pipeline_model_parallel_size": "pipeline_parallel_size",
    "data_parallel_size": "data_parallel_size",
}
"""Options of verl's rollout that spread one engine over several GPUs, and vLLM's names of them. All
are 1 by default."""


def verl_settings(
    config: Config,
    *,
    device: str,
    model_path: str,
    run_dir: Path,
    steps: int,
    validate_first: bool = True,
    validate_only: bool = False,
) -> Section:
    """Return what harness sets in verl's configuration, nested; the rest stays verl's default.

    Args:
        validate_first: Validate before the first step of this launch, not only after steps.
        validate_only: Train no step.

    Raises:
        ConfigError: verl, or agents that call over HTTP, cannot work with this combination.
    """
    own = chosen(config)
    merges = options(config).merges(program(program_of(config.agent)).calls_tools)
    mode = at(own, "trainer.v1.trainer_mode", "sync")
    if mode not in SAMPLERS:
        raise ConfigError(f"verl.trainer.v1.trainer_mode {mode!r} is none of {', '.join(SAMPLERS)}")
    launch = {
        "total_training_steps": steps,
        "val_before_train": validate_first,
        "val_only": validate_only,
    }
    settings: Section = {
        "algorithm": {"adv_estimator": "grpo", "use_kl_in_reward": False},
        "data": _data(config, run_dir / "data"),
        "actor_rollout_ref": {
            "model": {"path": model_path, "trust_remote_code": config.policy.trust_remote_code},
            **_actor_and_rollout(config, run_dir / "data"),
        },
        "reward": {"num_workers": 1},
        "trainer": _trainer(config, run_dir, steps)
        | {"device": device, "v1": {"sampler": _sampler(config, mode, merges)}}
        | launch,
    }
    _adapt(settings, config, device, model_path, own)
    merge(settings, {"ray_kwargs": {"ray_init": _ray(config, device)}})
    if device == "cuda":
        merge(settings, placement(config, own, model_path))
    # The user's options override all of these, and later settings depend on the result.
    merge(settings, own)
    _run_worker_in_engine(settings)
    model = settings["actor_rollout_ref"]["model"]
    if device == "cuda" and "enable_gradient_checkpointing" not in model:
        model["enable_gradient_checkpointing"] = recomputes(config, settings, model_path)
    check(config, settings, device, merges=merges)
    return settings


def _data(config: Config, data_dir: Path) -> Section:
    return {
        "train_files": str(data_dir / "train.parquet"),
        "val_files": str(data_dir / "val.parquet"),
        "train_batch_size": config.train.batch_size,
        "max_prompt_length": config.sampling.max_prompt_tokens,
        "max_response_length": config.sampling.max_response_tokens,
        # train.parquet is in the order of the run, so that the order is a file with a hash.
        "shuffle": False,
        "validation_shuffle": False,
        "filter_overlong_prompts": False,
        "dataloader_num_workers": 0,
        "seed": config.seed,
        "trust_remote_code": config.policy.trust_remote_code,
    }


def _actor_and_rollout(config: Config, data_dir: Path) -> Section:
    train, sampling = options(config), config.sampling
    mini = train.mini_batch_size or train.batch_size
    micro = micro_batch(
        train.micro_batch_size, mini * config.rollout.group_size, config.gpus * config.nodes
    )
    return {
        "actor": {
            "ppo_mini_batch_size": mini,
            "ppo_micro_batch_size_per_gpu": micro,
            "clip_ratio_low": train.clip_low,
            "clip_ratio_high": train.clip_high,
            "use_kl_loss": train.kl_coefficient > 0,
            "kl_loss_coef": train.kl_coefficient,
            "entropy_coeff": train.entropy_coefficient,
            "data_loader_seed": config.seed,
            "optim": {"lr": train.learning_rate, "weight_decay": train.weight_decay},
        },
        "ref": {"log_prob_micro_batch_size_per_gpu": micro},
        "rollout": {
            "n": config.rollout.group_size,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "seed": config.seed,
            "tensor_model_parallel_size": 1,
            "max_model_len": sampling.max_prompt_tokens + sampling.max_response_tokens,
            "log_prob_micro_batch_size_per_gpu": micro,
            "calculate_log_probs": True,
            "agent": {
                "num_workers": 1,
                "default_agent_loop": AGENT_LOOP,
                "agent_loop_config_path": str(data_dir / "agent_loop.yaml"),
            },
        },
    }


def _trainer(config: Config, run_dir: Path, steps: int) -> Section:
    train = config.train
    return {
        "nnodes": config.nodes,
        "n_gpus_per_node": config.gpus,
        "project_name": "harness",
        "experiment_name": run_dir.name,
        "logger": ["console", "file", *train.loggers],
        "total_epochs": 1,
        "test_freq": train.val_every or steps,
        "save_freq": train.save_every or steps,
        "max_actor_ckpt_to_keep": max(train.keep_checkpoints, 1),
        "default_local_dir": str(run_dir / "checkpoints"),
        "resume_mode": "auto",
    }


def _sampler(config: Config, mode: str, merges: bool) -> Section:
    train = options(config)
    arguments: Section = {
        "batching": train.batching,
        "credit": train.credit,
        "merges": merges,
        "threshold": train.rejection_threshold if train.algorithm == "rejection" else None,
    }
    if train.algorithm == "supervised":
        arguments |= {"threshold": SCORE, "taught": True}
    return {
        "custom_sampler": {"path": "pkg://harness_verl.sampler", "name": SAMPLERS[mode]},
        "sampler_kwargs": arguments,
    }


def _adapt(settings: Section, config: Config, device: str, model_path: str, own: Section) -> None:
    """Apply what depends on the device, adapters, algorithm and tools."""
    train = options(config)
    if train.lora_rank:
        # Merge the adapter before the servers get the weights: agents name the policy, and the
        # servers would answer that name with the base model alone.
        lora = {
            "lora_rank": train.lora_rank,
            "lora_alpha": train.lora_rank,
            "lora": {"merge": True},
        }
        merge(settings, {"actor_rollout_ref": {"model": lora}})
    merge(settings, yaml.safe_load(_DEVICES.read_text(encoding="utf-8")).get(device, {}))
    if device in ("cpu", "cuda"):
        merge(settings, {"actor_rollout_ref": _rows(config, device)})
    if config.deterministic and device != "cpu":
        engine = {"fsdp_config": {"full_determinism": True, "seed": config.seed}}
        exact = {"actor": engine, "ref": engine, "rollout": {"full_determinism": True}}
        merge(settings, {"actor_rollout_ref": exact})
    if train.algorithm == "supervised":
        merge(settings, _SUPERVISED)
    elif _on_policy(config, device, own):
        merge(settings, _ON_POLICY)
    elif train.algorithm == "rejection":
        merge(
            settings,
            {"actor_rollout_ref": {"actor": {"policy_loss": {"loss_mode": CROSS_ENTROPY}}}},
        )
    if offers_tools(config.agent) and device != "cpu":
        reads = {"enable_auto_tool_choice": True, "tool_call_parser": tool_parser(model_path)}
        merge(settings, {"actor_rollout_ref": {"rollout": {"engine_kwargs": {"vllm": reads}}}})


def _run_worker_in_engine(settings: Section) -> None:
    """Run vLLM's worker in the process of its engine where an engine uses one GPU.

    verl requests a process of its own for the worker (`mp`). Engine and worker then wait for each
    other in busy loops, which take 2.4 cores per training. A deterministic training keeps `mp`,
    since no run has compared the two.
    """
    rollout = settings["actor_rollout_ref"]["rollout"]
    engine = (rollout.get("engine_kwargs") or {}).get("vllm") or {}
    # Options of the engine, with vLLM's names, override those of the rollout.
    one_gpu = True
    for in_verl, in_vllm in _PARALLEL.items():
        if engine.get(in_vllm, rollout.get(in_verl, 1)) != 1:
            one_gpu = False
    if rollout.get("name") != "vllm" or not one_gpu or rollout.get("full_determinism"):
        return
    own = {"distributed_executor_backend": "uni", **engine}
    rollout["engine_kwargs"] = {**(rollout.get("engine_kwargs") or {}), "vllm": own}


def _on_policy(config: Config, device: str, chosen: Mapping[str, object]) -> bool:
    """Return whether every update is of the policy that sampled.

    That holds where a step is one optimizer step and no option corrects for a difference.
    """
    train = options(config)
    own = ("trainer.v1.trainer_mode", "algorithm.rollout_correction", "algorithm.adv_estimator")
    whole = (
        train.mini_batch_size or train.batch_size
    ) == train.batch_size and train.batching == "by_rollout"
    corrections = (*own, "actor_rollout_ref.actor.policy_loss")
    return (
        train.packs(device, config.deterministic)
        and whole
        and not any(at(chosen, name, None) for name in corrections)
        and at(chosen, "actor_rollout_ref.actor.ppo_epochs", 1) == 1
    )


def _rows(config: Config, device: str) -> Section:
    """Return how rows become a forward pass's tensors: packed by tokens, or padded by number."""
    train = options(config)
    if not train.packs(device, config.deterministic):
        return {
            "model": {
                "use_remove_padding": False,
                "override_config": {"attn_implementation": "sdpa"},
            }
        }
    flash = device == "cuda" and importlib.util.find_spec("flash_attn") is not None
    shares = train.shares_prompts(device, config.deterministic)
    if shares and (not flash or train.share_prompts):
        attention = SHARED
    else:
        attention = "flash_attention_2" if flash else PACKED
    tokens = max(
        train.micro_batch_tokens,
        config.sampling.max_prompt_tokens + config.sampling.max_response_tokens,
    )
    by_tokens = {"log_prob_use_dynamic_bsz": True, "log_prob_max_token_len_per_gpu": tokens}
    return {
        "model": {
            "use_remove_padding": True,
            "override_config": {"attn_implementation": attention},
        },
        "actor": {"use_dynamic_bsz": True, "ppo_max_token_len_per_gpu": tokens},
        "rollout": by_tokens,
        "ref": by_tokens,
    }


def _ray(config: Config, device: str) -> Section:
    """Return how verl finds Ray: at the given address, or a new cluster for this run alone.

    The new cluster is separate from any other one on the machine.
    """
    apart: Section = {"runtime_env": {"worker_process_setup_hook": HOOK}}
    if config.ray_address:
        return {"address": config.ray_address, **apart}
    own: Section = {"address": "local", "include_dashboard": False, **apart}
    if device == "cpu":
        # Logical resources, by which Ray schedules verl's actors, not the machine's real cores.
        own |= {
            "num_cpus": 15 + config.gpus,
            "num_gpus": config.gpus,
            "object_store_memory": 1_000_000_000,
        }
    return own


_ON_POLICY: Section = {
    "algorithm": {"rollout_correction": {"bypass_mode": True}},
    "actor_rollout_ref": {"actor": {"policy_loss": {"loss_mode": ON_POLICY}}},
}
"""Settings for steps of one optimizer step: no pass for the old log-probabilities."""

_SUPERVISED: Section = {
    "algorithm": {"rollout_correction": {"bypass_mode": True}},
    "actor_rollout_ref": {"actor": {"policy_loss": {"loss_mode": SUPERVISED}}},
}
"""Settings for gold answers, which have no old log-probabilities."""

_DEVICES = Path(__file__).with_name("devices.yaml")
"""Further settings of verl, by device."""


def write_agent_loop(path: Path, session_file: Path) -> None:
    """Write the file that names our agent loop to verl's workers."""
    entry = {
        "name": AGENT_LOOP,
        "_target_": "harness_verl.loop.HarnessAgentLoop",
        "session_file": str(session_file),
    }
    path.write_text(yaml.safe_dump([entry]), encoding="utf-8")

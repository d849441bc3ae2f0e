"""Reject combinations before the start that would end verl minutes after it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harness.config import Config
from harness.errors import ConfigError
from harness.policies import about
from harness.util.formatting import members
from harness.util.parsing import at, nested
from harness_verl.names import CROSS_ENTROPY, ON_POLICY, PACKED, SHARED, SUPERVISED
from harness_verl.options import options


def micro_batch(wanted: int, rows: int, devices: int) -> int:
    """Return the sequences of one forward pass, a divisor of one device's rows as verl requires.

    Args:
        wanted: Most sequences that a device should take at once.
        rows: Rows of an optimizer step, on all devices together.
    """
    share = max(rows // devices, 1)
    size = min(wanted, share)
    # 1 divides everything, so the search ends.
    while share % size:
        size -= 1
    return size


_SAVED = ("model", "optimizer", "extra")
"""verl's contents of a checkpoint by default."""


def checkpoint_bytes(config: Config, model_path: str) -> int:
    """Estimate the least disk space of a checkpoint: fp32 weights and AdamW's two moments.

    Returns:
        Bytes; 0 for a policy that is not in a folder here.
    """
    if not (folder := Path(model_path)).is_dir():
        return 0
    config_of_model = about(model_path)
    weights = 0
    for kind in ("safetensors", "bin"):
        for file in folder.glob(f"*.{kind}"):
            weights += file.stat().st_size
    dtype = config_of_model.get("dtype") or config_of_model.get("torch_dtype")
    half = dtype in ("bfloat16", "float16")
    contents = at(nested(config.verl), "actor_rollout_ref.actor.checkpoint.save_contents") or _SAVED
    copies = 0
    if "model" in contents:
        copies += 1
    if "hf_model" in contents:
        copies += 1
    # LoRA's moments are small.
    if "optimizer" in contents and not options(config).lora_rank:
        copies += 2
    return weights * (2 if half else 1) * copies


def all_checkpoint_bytes(config: Config, model_path: str, steps: int) -> int:
    """Estimate the least disk space of a run's checkpoints.

    Returns:
        Bytes; 0 for a policy that is not in a folder here.
    """
    return checkpoint_bytes(config, model_path) * config.train.checkpoints_at_once(steps)


def check(
    config: Config, settings: Mapping[str, object], device: str, *, merges: bool = False
) -> None:
    """Reject what cannot work, given the settings that verl will get.

    Rows need no check: a step has the rows that its rollouts produced, and verl adds masked ones up
    to a multiple of both the optimizer's batch and the data-parallel size.

    Args:
        merges: Whether the calls of a dialogue are one row.

    Raises:
        ConfigError: Names the values that do not go together.
    """
    _replicas(config, settings, device)
    _batches(config, settings)
    _lengths(config, settings)
    estimator = at(settings, "algorithm.adv_estimator")
    if estimator == "grpo" and config.rollout.group_size < 2:
        raise ConfigError(
            "rollout.group_size 1: GRPO compares rollouts of one task with each other, "
            "so it takes 2 or more"
        )
    if config.sampling.temperature == 0 and config.train.algorithm == "supervised":
        raise ConfigError(
            "sampling.temperature 0: the loss is computed at this temperature. "
            "Take one above 0; validation is greedy all the same"
        )
    if config.sampling.temperature == 0:
        raise ConfigError(
            "sampling.temperature 0: all rollouts of a task would be the same, "
            "and nothing is learned from them. Take one above 0; validation is greedy all the same"
        )
    if options(config).batching == "by_rollout" and estimator == "gae":
        raise ConfigError(
            "verl.algorithm.adv_estimator=gae trains a critic and its mini-batches are cut "
            "by rows: set train.batching=verl with it"
        )
    if config.train.credit != "shared":
        _credit(config, settings)
    if config.train.algorithm == "rejection":
        _cross_entropy(config, settings, device, "the chosen rollouts", _CROSS_ENTROPY)
    if config.train.algorithm == "supervised":
        _cross_entropy(config, settings, device, "gold answers", _CROSS_ENTROPY | _TAUGHT)
    if merges:
        _merged(settings)
    mode = at(settings, "trainer.v1.trainer_mode", "sync")
    if len(members(config.agent)) > 1:
        _mixture(config, settings, mode)
    if mode == "separate_async":
        _separate(settings, device)


def _mixture(config: Config, settings: Mapping[str, object], mode: str) -> None:
    """Refuse a mixture of agents if steps are not those of the run's order."""
    if mode != "sync":
        raise ConfigError(
            f"verl.trainer.v1.trainer_mode={mode} starts rollouts before their step is known, and "
            f"the step decides which agent of {config.agent} makes them: "
            "set verl.trainer.v1.trainer_mode=sync"
        )
    size = at(settings, "data.train_batch_size")
    if size != config.train.batch_size:
        raise ConfigError(
            f"verl.data.train_batch_size={size} makes steps of another size than "
            f"train.batch_size={config.train.batch_size}, by which the agents of {config.agent} "
            "are assigned: set train.batch_size alone"
        )


def _replicas(config: Config, settings: Mapping[str, object], device: str) -> None:
    world = _world(settings)
    parallel = int(at(settings, "actor_rollout_ref.actor.ulysses_sequence_parallel_size", 1))
    if parallel > 1 and at(
        settings, "actor_rollout_ref.model.override_config.attn_implementation"
    ) in (PACKED, SHARED):
        raise ConfigError(
            f"verl.actor_rollout_ref.actor.ulysses_sequence_parallel_size {parallel} shares a row "
            "among devices, which only flash-attention can: install flash-attn"
        )
    rollout = "actor_rollout_ref.rollout"
    names = ("tensor_model_parallel_size", "data_parallel_size", "pipeline_model_parallel_size")
    size = 1
    factors = []
    for name in names:
        value = int(at(settings, f"{rollout}.{name}", 1))
        size *= value
        # Show only factors that the user changed from their default of 1.
        if value > 1:
            factors.append(f"{name} {value}")
    if world % size:
        raise ConfigError(
            f"a policy server takes {size} devices ({', '.join(factors)}), "
            f"which does not divide gpus x nodes = {config.gpus} x {config.nodes} = {world}: "
            f"change verl.{rollout}.tensor_model_parallel_size or gpus"
        )
    if device == "cpu" and size > 1:
        raise ConfigError(
            "on a CPU a policy server is one process: "
            f"set {rollout}.tensor_model_parallel_size to 1"
        )


def _batches(config: Config, settings: Mapping[str, object]) -> None:
    actor = "actor_rollout_ref.actor"
    ranks = _world(settings) // int(at(settings, f"{actor}.ulysses_sequence_parallel_size", 1))
    batch, mini = (
        int(at(settings, "data.train_batch_size")),
        int(at(settings, f"{actor}.ppo_mini_batch_size")),
    )
    n = int(at(settings, "actor_rollout_ref.rollout.n"))
    if mini > batch:
        raise ConfigError(f"train.mini_batch_size {mini} is larger than train.batch_size {batch}")
    for name, tasks in (("train.batch_size", batch), ("train.mini_batch_size", mini)):
        if tasks * n % max(ranks, 1):
            raise ConfigError(
                f"{name} x rollout.group_size = {tasks} x {n} does not divide "
                f"among {ranks} data-parallel devices "
                f"(gpus {config.gpus}, nodes {config.nodes}): choose a multiple of {ranks}"
            )
    micro = int(at(settings, f"{actor}.ppo_micro_batch_size_per_gpu"))
    share = mini * n // max(ranks, 1)
    if share % micro and not at(settings, f"{actor}.use_dynamic_bsz", False):
        raise ConfigError(
            f"verl.{actor}.ppo_micro_batch_size_per_gpu {micro} does not divide the {share} rows "
            "that an optimizer step gives each device: "
            "leave it to train.micro_batch_size, which is lowered to fit"
        )


def _shorter(prompt: int, response: int, most: int) -> str:
    """Return the settings that make a prompt and its reply fit into `most` tokens."""
    if response < most:
        return f"--set sampling.max_prompt_tokens={most - response}"
    half = most // 2
    return f"lower both: --set sampling.max_prompt_tokens={half} --set sampling.max_response_tokens={half}"


def _lengths(config: Config, settings: Mapping[str, object]) -> None:
    prompt, response = config.sampling.max_prompt_tokens, config.sampling.max_response_tokens
    model = at(settings, "actor_rollout_ref.model")
    if not Path(model["path"]).is_dir():  # nodes of a cluster download the policy themselves
        return
    config_of_model = about(model["path"]) | model.get("override_config", {})
    scaled = config_of_model.get("rope_scaling") or config_of_model.get("rope_parameters") or {}
    if scaled.get("rope_type", scaled.get("type", "default")) in _LONGER:
        return
    if prompt + response > (most := config_of_model.get("max_position_embeddings", math.inf)):
        raise ConfigError(
            f"sampling.max_prompt_tokens {prompt} + max_response_tokens {response} are more than "
            f"the policy's {most} (max_position_embeddings of {config.policy.path}): "
            f"{_shorter(prompt, response, most)}"
        )


_LONGER = ("linear", "dynamic", "yarn")
"""Position embeddings that extend a policy's trained length."""


def _credit(config: Config, settings: Mapping[str, object]) -> None:
    needs = f"train.credit={config.train.credit} pays calls of one rollout differently, which"
    if options(config).batching != "by_rollout":
        raise ConfigError(
            f"{needs} verl's own batches cannot: set train.batching=by_rollout with it"
        )
    if (estimator := at(settings, "algorithm.adv_estimator")) != "grpo":
        raise ConfigError(
            f"{needs} only grpo does here, not verl.algorithm.adv_estimator={estimator}"
        )
    if at(settings, "algorithm.use_kl_in_reward", False):
        raise ConfigError(
            f"{needs} leaves out verl.algorithm.use_kl_in_reward: set train.kl_coefficient instead"
        )


def _cross_entropy(
    config: Config,
    settings: Mapping[str, object],
    device: str,
    trained: str,
    allowed: Mapping[str, tuple[Any, ...]],
) -> None:
    algorithm = config.train.algorithm
    needs = f"train.algorithm={algorithm} is cross entropy on {trained} and nothing else"
    if device not in ("cpu", "cuda"):
        raise ConfigError(
            f"{needs}, which is not made for {device}: take cpu or cuda, or train.algorithm=grpo"
        )
    if options(config).batching != "by_rollout":
        raise ConfigError(
            f"{needs}, which verl's own batches know nothing of: "
            "set train.batching=by_rollout with it"
        )
    for name in ("kl_coefficient", "entropy_coefficient"):
        if value := getattr(options(config), name):
            raise ConfigError(f"{needs}: set train.{name}=0 with it, not {value:g}")
    for name, known in allowed.items():
        if (value := at(settings, name, known[0])) not in known:
            raise ConfigError(f"{needs}: leave out verl.{name}={value}")


_CROSS_ENTROPY: dict[str, tuple[Any, ...]] = {
    "algorithm.adv_estimator": ("grpo",),
    "algorithm.use_kl_in_reward": (False,),
    "algorithm.rollout_correction.rollout_is": (None,),
    "algorithm.rollout_correction.rollout_rs": (None,),
    "actor_rollout_ref.actor.loss_agg_mode": ("token-mean",),
    "actor_rollout_ref.actor.use_kl_loss": (False,),
    "actor_rollout_ref.actor.entropy_coeff": (0.0,),
    "actor_rollout_ref.actor.policy_loss.loss_mode": (ON_POLICY, CROSS_ENTROPY),
}
"""Allowed values, default first, with a mean cross entropy over chosen rollouts as the loss."""
_TAUGHT: dict[str, tuple[Any, ...]] = {
    "algorithm.rollout_correction.bypass_mode": (True,),
    "actor_rollout_ref.actor.policy_loss.loss_mode": (SUPERVISED,),
}
"""Other allowed values where gold answers are trained, which have no old log-probabilities."""


def _merged(settings: Mapping[str, object]) -> None:
    for name, known in _BY_TOKEN.items():
        if (value := at(settings, name, known[0])) not in known:
            raise ConfigError(
                f"verl.{name}={value} takes a row for a call, and calls of a dialogue are one row: "
                "set train.merge_calls=false with it"
            )


_BY_TOKEN: dict[str, tuple[Any, ...]] = {
    "algorithm.adv_estimator": ("grpo",),
    "algorithm.use_kl_in_reward": (False,),
    "algorithm.rollout_correction.rollout_is": (None, "token"),
    "algorithm.rollout_correction.rollout_rs": (None,),
    "actor_rollout_ref.actor.loss_agg_mode": ("token-mean", "token-sum"),
    "actor_rollout_ref.actor.policy_loss.loss_mode": ("vanilla", ON_POLICY, CROSS_ENTROPY),
}
"""Allowed values, default first, where a row holds several calls and each token counts alone."""


def _separate(settings: Mapping[str, object], device: str) -> None:
    if device == "cpu":
        raise ConfigError(
            "separate_async sends weights over NCCL or a similar library, which a CPU has not: "
            "use colocate_async"
        )
    if at(settings, "actor_rollout_ref.hybrid_engine", True):
        # verl moves these servers in and out of its own load balancer and holds calls at a gate
        # inside its actor. Calls over HTTP bypass that gate and would wait at a server that sleeps.
        raise ConfigError(
            "separate_async lends training devices to the rollouts and takes them back, "
            "which agents that call the servers over HTTP cannot follow: "
            "set verl.actor_rollout_ref.hybrid_engine=false, or use colocate_async"
        )


def _world(settings: Mapping[str, object]) -> int:
    return int(at(settings, "trainer.nnodes")) * int(at(settings, "trainer.n_gpus_per_node"))

"""The trainer's own options `train.*`, and the settings that it refuses."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from harness import Config, ConfigError, TrainConfig
from harness.plugins import program, program_of
from harness.util.formatting import members
from harness.util.parsing import flatten

OF_OTHER_ENGINES = (
    "actor_rollout_ref.rollout",
    "actor_rollout_ref.actor.fsdp_config",
    "actor_rollout_ref.actor.use_torch_compile",
    "actor_rollout_ref.actor.checkpoint",
    "actor_rollout_ref.model.enable_gradient_checkpointing",
)
"""Options of verl that place its memory and engines. Presets set them, and here they do nothing."""


class DemonstrationsTrainConfig(TrainConfig):
    """The section `train` of the trainer: how many sets of demonstrations compete.

    `learning_rate` and `rejection_threshold`, which presets set, have no meaning here.
    """

    candidates: int = Field(8, ge=1)
    """Random sets of demonstrations that compete; the prompts without demonstrations always do."""
    shots: int = Field(3, ge=1)
    """Demonstrations of each role in one set."""

    def identity(self, device: str, deterministic: bool, calls_tools: bool) -> dict[str, Any]:
        """Return the options that decide the result, without those of trainers of weights."""
        shared = super().identity(device, deterministic, calls_tools)
        for name in ("learning_rate", "rejection_threshold"):
            shared.pop(name, None)
        return shared | {"updates_weights": False}


def options(config: Config) -> DemonstrationsTrainConfig:
    """Return the section `train` of a configuration for this trainer.

    Raises:
        ConfigError: The configuration is for another trainer.
    """
    if not isinstance(config.train, DemonstrationsTrainConfig):
        raise ConfigError(f"train.trainer is {config.train.trainer!r}, not 'demonstrations'")
    return config.train


def refuse(config: Config) -> None:
    """Refuse settings of trainers that change weights; they would be ignored here.

    Raises:
        ConfigError: A setting has another value than the one that this trainer uses.
    """
    train = options(config)
    wanted: dict[str, tuple[object, object]] = {
        "train.algorithm": (train.algorithm, "grpo"),
        # Candidates are compared by whole rollouts.
        "train.credit": (train.credit, "shared"),
        # Left out, a candidate with prompts that are too long could not lose.
        "train.failed_rollouts": (train.failed_rollouts, "zero"),
        "train.loggers": (train.loggers, []),
        "gpus": (config.gpus, 1),
        "nodes": (config.nodes, 1),
        "ray_address": (config.ray_address, None),
    }
    for key, (value, only) in wanted.items():
        if value != only:
            raise ConfigError(
                f"{key}={value!r}: the trainer 'demonstrations' only works with {key}={only!r}. "
                "Set that, or choose another train.trainer"
            )
    if len(members(config.agent)) > 1:
        raise ConfigError(
            f"agent: {config.agent} mixes agents, and the trainer 'demonstrations' compares "
            "demonstrations in one agent. Name one agent, or choose another train.trainer"
        )
    if program(program_of(config.agent)).calls_tools:
        raise ConfigError(
            f"agent: the program {program_of(config.agent)!r} of {config.agent} calls tools, and a "
            "demonstration is one message and its reply. Choose another train.trainer or agent"
        )
    for name in flatten(config.verl):
        option = name.removeprefix("+")
        if not any(option == known or option.startswith(f"{known}.") for known in OF_OTHER_ENGINES):
            raise ConfigError(
                f"verl.{option}: the trainer 'demonstrations' does not use verl, so this option "
                "would do nothing. Leave it out, or choose another train.trainer"
            )
    rollouts = train.batch_size * config.rollout.group_size
    if rollouts < train.candidates + 1:
        raise ConfigError(
            f"train.candidates={train.candidates}: with the prompts without demonstrations these "
            f"are {train.candidates + 1} candidates, and a step has only {rollouts} rollouts "
            "(train.batch_size x rollout.group_size). Use fewer candidates or larger steps"
        )

"""verl's own options `train.*`, and what follows from them. Imports neither verl nor torch."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer

from harness.config import Config, TrainConfig
from harness.errors import ConfigError


class VerlTrainConfig(TrainConfig):
    """The section `train` of verl: its batches, its loss, and the rows of a forward pass."""

    mini_batch_size: int | None = Field(None, ge=1)
    """Tasks per optimizer step; unset: the whole batch."""
    batching: Literal["by_rollout", "verl"] = "by_rollout"
    """`by_rollout`: rows in a fixed order whenever they arrive, a fixed number of optimizer steps,
    whole rollouts per device, and a baseline over all scored rollouts of a task. `verl`: verl's own
    batching, in order of arrival.
    """
    merge_calls: bool = True
    """Combine consecutive calls of a dialogue with tools into one row of an update. The gradient is
    the same; needs `batching: by_rollout`.
    """
    micro_batch_size: int = Field(8, ge=1)
    """Most sequences per forward pass on one device, for padded rows. The largest number that
    divides the batch is used.
    """
    packed: bool | None = None
    """Pack rows end to end instead of padding them, `micro_batch_tokens` at a time; unset: on CPUs,
    and on GPUs without `deterministic`.
    """
    micro_batch_tokens: int = Field(16384, ge=1)
    """Most tokens per forward pass on one device, for packed rows; at least one row is taken."""
    recompute: bool | None = None
    """On GPUs: recompute activations in the backward pass instead of keeping them, for a third more
    time and half the memory; unset: if they might not fit.
    """
    share_prompts: bool | None = None
    """For packed rows: compute a prompt that several rows share once per update; unset: on GPUs
    without flash-attn.
    """
    clip_low: float = Field(0.2, gt=0)
    clip_high: float = Field(0.3, gt=0)
    kl_coefficient: float = Field(0.0, ge=0)
    """Weight of the KL loss to the initial policy; 0 loads no reference model."""
    entropy_coefficient: float = 0.0
    weight_decay: float = Field(0.01, ge=0)
    lora_rank: int = Field(0, ge=0)

    def checkpoints_at_once(self, steps: int) -> int:
        """Return the most checkpoints of a training of `steps` steps that are on the disk at once.

        To keep one, verl removes it after it has written the next. To keep more, it removes the
        oldest first (`CheckpointManager.ensure_checkpoint_capacity`).
        """
        return min(max(self.keep_checkpoints, 2), self.checkpoints_saved(steps))

    def packs(self, device: str, deterministic: bool) -> bool:
        """Return whether rows are packed.

        Args:
            device: The resolved device.
            deterministic: The configuration's `deterministic`.
        """
        if self.packed is not None:
            return self.packed
        return device == "cpu" or (device == "cuda" and not deterministic)

    def shares_prompts(self, device: str, deterministic: bool) -> bool:
        """Return whether an update computes shared prompts once; arguments as in `packs`."""
        chosen = device == "cuda" if self.share_prompts is None else self.share_prompts
        return self.packs(device, deterministic) and chosen

    def merges(self, calls_tools: bool) -> bool:
        """Return whether calls of a dialogue become one row.

        Args:
            calls_tools: Whether the program calls tools.
        """
        return calls_tools and self.merge_calls and self.batching == "by_rollout"

    def identity(self, device: str, deterministic: bool, calls_tools: bool) -> dict[str, Any]:
        """Return the options that decide what is learned, and whether rows round otherwise."""
        shared = super().identity(device, deterministic, calls_tools)
        for name in _NOT_IDENTITY:
            del shared[name]
        # Packed, shared and merged rows round differently. Their keys appear only if they are used, so
        # that the identity of older runs is unchanged.
        if self.packs(device, deterministic):
            shared["packed"] = True
        if self.shares_prompts(device, deterministic):
            shared["shared_prompts"] = True
        if self.merges(calls_tools):
            shared["merged"] = True
        return shared

    @model_serializer(mode="wrap")
    def _in_order(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Return the options in the order of all records, mixed with those of `TrainConfig`."""
        values: dict[str, Any] = dump(self)
        return {name: values[name] for name in ORDER if name in values} | values


_NOT_IDENTITY = (
    "micro_batch_size",
    "micro_batch_tokens",
    "packed",
    "recompute",
    "share_prompts",
    "merge_calls",
)
"""Options that cannot change what is learned."""
ORDER = (
    "trainer",
    "algorithm",
    "rejection_threshold",
    "batch_size",
    "steps",
    "epochs",
    "learning_rate",
    "mini_batch_size",
    "batching",
    "failed_rollouts",
    "credit",
    "merge_calls",
    "micro_batch_size",
    "packed",
    "micro_batch_tokens",
    "recompute",
    "share_prompts",
    "clip_low",
    "clip_high",
    "kl_coefficient",
    "entropy_coefficient",
    "weight_decay",
    "val_every",
    "save_every",
    "keep_checkpoints",
    "lora_rank",
    "loggers",
)
"""All keys of the section, in the order of `config.yaml` and `run.json`."""


def options(config: Config) -> VerlTrainConfig:
    """Return the section `train` of a configuration for verl.

    Raises:
        ConfigError: The configuration is for another trainer.
    """
    if not isinstance(config.train, VerlTrainConfig):
        raise ConfigError(f"train.trainer is {config.train.trainer!r}, not one that trains by verl")
    return config.train

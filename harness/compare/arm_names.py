"""Names of arms that no study names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from harness.compare.policies import name_policies
from harness.compare.trainers import of_one_trainer
from harness.util.formatting import agent_label
from harness.util.parsing import differing, flatten

if TYPE_CHECKING:
    from harness.runs.reading import Run

_OF_THE_DEVICE = (
    "gpus",
    "nodes",
    "rollout.runners",
    "rollout.concurrency",
    "rollout.host",
    "trusted_network",
    "rollout.store",
    "reward.concurrency",
    "train.micro_batch",
    "verl",
)


def name_arms(runs: Sequence[Run]) -> None:
    """Name arms by their differences: the agent, and every other configuration key that differs.

    Settings that only follow the preset of another device are summarized by the device, and options
    that only one trainer has by the trainer.
    """
    configs: list[dict[str, Any]] = []
    devices: list[str] = []
    kinds: set[str] = set()
    for run in runs:
        configs.append(flatten(run.record["config"]))
        devices.append(str(run.record.get("device")))
        kinds.add(run.record["kind"])
    # The seed is no part of a name: runs of an arm are those that differ in nothing else.
    keys = []
    for key in differing(configs):
        follows = _goes_with_device(key, configs, devices) or of_one_trainer(key, configs)
        if key not in ("agent", "seed", "device") and not follows:
            keys.append(key)
    several_devices = len(set(devices)) > 1
    several_kinds = len(kinds) > 1
    for run, config, device in zip(runs, configs, devices, strict=True):
        if run.arm:
            continue
        parts = [agent_label(str(config["agent"]))]
        if several_devices:
            parts.append(f"on {device}")
        for key in keys:
            parts.append(f"{key.rpartition('.')[2]}={config.get(key)}")
        if several_kinds:
            parts.append(run.record["kind"])
        run.arm = " ".join(parts)
    name_policies(runs)


def _goes_with_device(
    key: str, configs: Sequence[Mapping[str, object]], devices: Sequence[str]
) -> bool:
    """Return whether a setting has one value per device, as that of the device's preset."""
    if not key.startswith(_OF_THE_DEVICE):
        return False
    values = set()
    for device, config in zip(devices, configs, strict=True):
        values.add((device, str(config.get(key))))
    return len(values) == len(set(devices))

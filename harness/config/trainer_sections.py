"""Find the section `train` of a trainer, which its plugin defines."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, cast

from harness.config.sections import TrainConfig

FINDER = ("harness.plugins", "train_section")
"""Module and name of the function that finds the section of an installed trainer.

It is named here and imported on first use, because `harness.plugins` depends on this package.
"""


def section_of(trainer: str) -> type[TrainConfig]:
    """Return the section `train` of a trainer.

    Raises:
        PluginError: The trainer's section cannot be imported, or is none.
    """
    module, name = FINDER
    find: Callable[[str], type[TrainConfig]] = getattr(import_module(module), name)
    return find(trainer)


def trainer_named(data: Mapping[str, Any]) -> str:
    """Return the trainer that plain data of a configuration names, by default verl's."""
    default = cast(str, TrainConfig.model_fields["trainer"].default)
    train = data.get("train")
    named = train.get("trainer", default) if isinstance(train, Mapping) else default
    # Another value is refused when the section is validated.
    return named if isinstance(named, str) else default


def fitting(preset: Mapping[str, Any], trainer: str) -> dict[str, Any]:
    """Return a preset's settings without the options that only another trainer has.

    A preset for the trainer itself is returned as it is.

    Args:
        preset: Its settings. They are for the trainer that they name.
        trainer: The trainer that is configured.
    """
    train = preset.get("train")
    if trainer_named(preset) == trainer or not isinstance(train, Mapping):
        return dict(preset)
    known = section_of(trainer).model_fields
    return {**preset, "train": {key: value for key, value in train.items() if key in known}}

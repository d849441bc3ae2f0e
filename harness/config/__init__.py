"""The configuration of a run: strict sections, layered values, and one file that runs again."""

from harness.config.configuration import (
    Config,
    Setting,
    cache_dir,
    key_in,
    load_config,
    presets,
    presets_dir,
    resolve_device,
    validate,
)
from harness.config.sections import TrainConfig

__all__ = [
    "Config",
    "Setting",
    "TrainConfig",
    "cache_dir",
    "key_in",
    "load_config",
    "presets",
    "presets_dir",
    "resolve_device",
    "validate",
]

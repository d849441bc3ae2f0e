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

__all__ = [
    "Config",
    "Setting",
    "cache_dir",
    "key_in",
    "load_config",
    "presets",
    "presets_dir",
    "resolve_device",
    "validate",
]

"""The options of an arm that has another trainer than the study's common settings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from harness.config.trainer_sections import section_of, trainer_named
from harness.util.parsing import nested


def options_of_arm(common: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return an arm's settings without common options that its trainer does not have.

    Args:
        common: The study's `set`.
        settings: The arm's settings, those of `set` included.
    """
    of_all, of_arm = trainer_named(nested(common)), trainer_named(nested(settings))
    if of_arm == of_all:
        return dict(settings)
    known = section_of(of_arm).model_fields
    of_others = section_of(of_all).model_fields
    fitting: dict[str, Any] = {}
    for key, value in settings.items():
        option = key.removeprefix("train.").partition(".")[0]
        is_common = key.startswith("train.") and key in common and common[key] == value
        if is_common and option in of_others and option not in known:
            continue
        fitting[key] = value
    return fitting

"""Layers of nested settings: dotted keys, numbers, and one laid over another."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping
from datetime import date
from typing import Any


def merge(into: dict[str, Any], layer: Mapping[str, Any]) -> dict[str, Any]:
    """Lay `layer` over `into`, mapping by mapping, and return it. Anything but a mapping is replaced whole."""
    for key, value in layer.items():
        if isinstance(value, Mapping):
            below = into.get(key)
            into[key] = merge(below if isinstance(below, dict) else {}, value)
        else:
            into[key] = value
    return into


def nested(options: Mapping[str, Any]) -> dict[str, Any]:
    """Dotted keys as nested ones; later keys win."""
    result: dict[str, Any] = {}
    for key, value in options.items():
        layer: Any = nested(value) if isinstance(value, Mapping) else value
        for part in reversed(str(key).split(".")):
            layer = {part: layer}
        merge(result, layer)
    return result


def numbers(value: Any) -> Any:
    """The same plain data with text such as `1e-4` as a number and dates as text: YAML 1.1 has it otherwise."""
    if isinstance(value, Mapping):
        return {key: numbers(item) for key, item in value.items()}
    if isinstance(value, list):
        return [numbers(item) for item in value]
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, str) and "e" in value.lower():
        try:
            return float(value)
        except ValueError:
            return value
    return value


def at(settings: Mapping[str, Any], path: str, default: Any = None) -> Any:
    """What stands under a dotted path, or `default` where there is nothing."""
    found: Any = settings
    for part in path.split("."):
        if not isinstance(found, Mapping) or part not in found:
            return default
        found = found[part]
    return found


def flatten(data: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested mappings as one level with dotted keys; lists and empty mappings are values."""
    flat: dict[str, Any] = {}
    for key, value in data.items():
        if isinstance(value, Mapping) and value:
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = {} if isinstance(value, Mapping) else value
    return flat


def differing(settings: Collection[Mapping[str, Any]]) -> list[str]:
    """Keys of flat settings whose value is not the same in all of them."""
    keys = dict.fromkeys(key for one in settings for key in one)
    return [key for key in keys if len({str(one.get(key)) for one in settings}) > 1]


def digest(data: Mapping[str, Any]) -> str:
    """One hash of JSON data, whatever the order of its keys. 16 hex digits."""
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()[:16]

"""Validation that refuses keys which a record type does not name."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pydantic import ConfigDict, TypeAdapter, with_config


def strict_adapter(whole: type, parts: Iterable[type]) -> TypeAdapter[Any]:
    """Return an adapter of `whole` that refuses unknown keys of `parts`.

    pydantic reads the setting from the type itself, so it is removed again: other tests of the
    same process validate records as programs do.
    """
    parts = list(parts)
    for part in parts:
        with_config(ConfigDict(extra="forbid"))(part)
    try:
        return TypeAdapter(whole)
    finally:
        for part in parts:
            del part.__pydantic_config__  # type: ignore[attr-defined]

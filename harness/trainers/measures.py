"""What columns of a logged step mean, whatever its trainer calls them."""

from __future__ import annotations

from collections.abc import Iterable

from harness.errors import PluginError
from harness.plugins import trainer_spec


def columns(trainer: str, measure: str, there: Iterable[str]) -> list[str]:
    """The columns, of those that are there, that add up to one of `MEASURES`; empty where it was not logged.

    Of a trainer that is not installed here only the names of `MEASURES` themselves are known.
    """
    names = set(there)
    if measure in names:
        return [measure]
    try:
        known = trainer_spec(trainer).measures.get(measure, ())
    except PluginError:
        return []
    return [name for name in known if name in names]

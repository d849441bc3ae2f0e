"""Format the places of a finding on one line."""

from __future__ import annotations

from collections.abc import Sequence

SHOWN = 5
"""Number of places and clusters shown on one line."""


def places(found: Sequence[str], between: str = ", ") -> str:
    """Return for example `questions.jsonl, line 3, line 5 and 2 more`."""
    shown, last = [], ""
    for place in found[:SHOWN]:
        file, _, where = place.rpartition(", ")
        shown.append(where if file == last else place)
        last = file
    more = f" and {len(found) - SHOWN} more" if len(found) > SHOWN else ""
    return between.join(shown) + more

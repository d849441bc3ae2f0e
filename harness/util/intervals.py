"""Lengths of time spans that may overlap."""

from __future__ import annotations

from collections.abc import Iterable


def covered_s(spans: Iterable[tuple[float, float]]) -> float:
    """Return the seconds that at least one span, from its start to its end, covers."""
    # Spans may overlap, so their lengths must not be summed: only what lies after the latest end
    # so far is new.
    covered = until = 0.0
    for start, end in sorted(spans):
        covered += max(0.0, end - max(start, until))
        until = max(until, end)
    return covered

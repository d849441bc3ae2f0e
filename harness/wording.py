"""Numbers in words, the same wherever they are shown."""

from __future__ import annotations


def percent(value: float | None) -> str:
    """`62.5 %`, or a dash where there is no value."""
    return "-" if value is None else f"{100 * value:.1f} %"


def duration(seconds: float | None) -> str:
    """`1 h 02 min`, `3 min 20 s`, `12 s`, or a dash."""
    if seconds is None:
        return "-"
    whole = round(seconds)
    if whole >= 3600:
        return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
    return f"{whole // 60} min {whole % 60:02d} s" if whole >= 60 else f"{whole} s"


def with_cores(cores: int) -> str:
    """`with 4 cores each`."""
    return f"with {cores} core{'s' * (cores > 1)} each"

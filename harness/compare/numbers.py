"""Numbers of a comparison as text."""

from __future__ import annotations

from harness.compare.keys import EstimateData, Interval


def points(value: float | None, signed: bool = False) -> str:
    """Return a share as percent or a difference as points, with one decimal; a dash for None."""
    return "-" if value is None else f"{100 * value:{'+' * signed}.1f}"


def interval(ends: Interval | None, signed: bool = True) -> str:
    """Return `[-0.3, +0.4]`, or a dash for None."""
    return "-" if ends is None else f"[{points(ends[0], signed)}, {points(ends[1], signed)}]"


def with_interval(estimate: EstimateData | None, signed: bool = False) -> str:
    """Return `62.5 [58.1, 66.9]`."""
    if estimate is None:
        return "-"
    return (
        f"{points(estimate['mean'], signed)} "
        f"{interval((estimate['low'], estimate['high']), signed)}"
    )


def formed(value: float | None, ends: Interval | None, form: str, signed: bool = False) -> str:
    """Return `with_interval` for any unit and format, without % and without an empty interval."""
    if value is None:
        return "-"
    mean, *limits = (
        f"{one:{'+' * signed}z{form}}".removesuffix("%") for one in (value, *(ends or ()))
    )
    return f"{mean} [{', '.join(limits)}]" if {*limits} - {mean} else mean


def number(value: float | None, digits: int = 1) -> str:
    """Return a plain number, or a dash for None."""
    return "-" if value is None else f"{value:,.{digits}f}"


def p_value(value: float | None) -> str:
    """Return `0.031`, `<0.001`, or a dash for None."""
    return "-" if value is None else "<0.001" if value < 0.001 else f"{value:.3f}"

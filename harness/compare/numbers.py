"""Numbers of a comparison as text."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from math import floor, log10, sqrt
from statistics import fmean, stdev

from harness.compare.keys import EstimateData, Interval


def points(value: float | None, signed: bool = False) -> str:
    """Return a share as percent or a difference as points, with one decimal; a dash for None."""
    if value is None:
        return "-"
    form = "+.1f" if signed else ".1f"
    return format(100 * value, form)


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
    # `z` removes the sign of a rounded zero: "-0.0" would suggest a difference below zero.
    sign_and_form = f"+z{form}" if signed else f"z{form}"
    mean = format(value, sign_and_form).removesuffix("%")
    limits = [format(end, sign_and_form).removesuffix("%") for end in ends or ()]
    # An interval that rounds to its mean says nothing.
    if set(limits) <= {mean}:
        return mean
    return f"{mean} [{', '.join(limits)}]"


def number(value: float | None, digits: int = 1) -> str:
    """Return a plain number, or a dash for None."""
    return "-" if value is None else f"{value:,.{digits}f}"


def known_digits(values: Sequence[float | None]) -> str:
    """Return the mean of measurements with no more digits than are known, or a dash for None.

    Three significant digits at most and two decimals; none below the first digit of the
    standard error where there are several values.
    """
    measured = [value for value in values if value is not None]
    if not measured:
        return "-"
    # Places count as powers of ten. Digits below the standard error would look like knowledge and
    # change with every new seed.
    mean = fmean(measured)
    last = _first_place(mean) - 2
    if len(measured) > 1:
        last = max(last, _first_place(stdev(measured) / sqrt(len(measured))))
    # The first digit of the mean stays, however wide the values spread.
    last = max(-2, min(last, _first_place(mean)))
    return f"{round(mean, -last):,.{max(-last, 0)}f}"


def _first_place(value: float) -> int:
    """Return the power of ten of a number's first digit."""
    return floor(log10(abs(value))) if value else -sys.maxsize


def p_value(value: float | None) -> str:
    """Return `0.031`, `<0.001`, or a dash for None."""
    if value is None:
        return "-"
    return "<0.001" if value < 0.001 else f"{value:.3f}"

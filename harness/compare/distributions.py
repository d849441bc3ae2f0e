"""Quantiles and tails of distributions, and smallest detectable differences."""

from __future__ import annotations

import math
from collections.abc import Callable


def root(rising: Callable[[float], float], low: float, high: float) -> float:
    """Return the root of a rising function between `low` and `high`, by bisection to 13 digits."""
    for _ in range(45):
        middle = (low + high) / 2
        low, high = (low, middle) if rising(middle) > 0 else (middle, high)
    return high


def t_quantile(share: float, df: float) -> float:
    """Return the quantile of Student's t."""
    from scipy.special import ndtri, stdtrit

    return float(stdtrit(df, share) if math.isfinite(df) else ndtri(share))


def t_above(value: float, df: float) -> float:
    """Return the probability that Student's t is larger than `value`."""
    from scipy.special import ndtr, stdtr

    return float(stdtr(df, -value) if math.isfinite(df) else ndtr(-value))


def no_exception_p(share: float, count: int) -> float:
    """Return the probability that none of `count` questions is an exception.

    Args:
        share: Share of exceptions among all questions.
    """
    return float((1 - min(share, 1.0)) ** count)


def detectable_effect(se: float, df: float, power: float = 0.8, alpha: float = 0.05) -> float:
    """Return the true difference that a t test with this standard error detects with this power.

    It is 0 if `alpha` is more than the power.

    Source: Cohen 1988, Statistical Power Analysis, chapter 2, by the noncentral t distribution.
    """
    from scipy.special import nctdtr

    beyond = t_quantile(1 - alpha / 2, df)

    def lacking(errors: float) -> float:
        # scipy returns nan for a tail that is too small for it: such a tail counts as 0.
        lower = float(nctdtr(df, errors, -beyond))
        return 1 - float(nctdtr(df, errors, beyond)) + (0.0 if math.isnan(lower) else lower) - power

    enough = beyond
    while lacking(enough) < 0:
        enough *= 2
    return root(lacking, 0.0, enough) * se

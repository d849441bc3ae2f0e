"""The cost of runs: tokens, GPU hours and, with prices, money."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from harness.compare.keys import Arm
from harness.errors import UserError

if TYPE_CHECKING:
    from harness.runs.folder import RunFolder

MILLION = 1_000_000


@dataclass(frozen=True, slots=True)
class Price:
    """Prices of a million tokens, in any one currency.

    Attributes:
        prompt: Price of prompt tokens.
        response: Price of response tokens.
    """

    prompt: float
    response: float

    def of(self, prompt_tokens: float, response_tokens: float) -> float:
        """Return the price of so many tokens."""
        return (prompt_tokens * self.prompt + response_tokens * self.response) / MILLION


@dataclass(frozen=True, slots=True)
class Tokens:
    """Tokens of all calls of a run, training and validation together."""

    prompt: int
    response: int
    rollouts: int
    right: float
    """The sum of rewards: of rewards 0 and 1, the right answers."""


def price_of(price_in: float | None, price_out: float | None) -> Price | None:
    """Return the prices from two options; None if both are omitted.

    Raises:
        UserError: Only one of them is given.
    """
    if price_in is None and price_out is None:
        return None
    if price_in is None or price_out is None:
        missing = "--price-in" if price_in is None else "--price-out"
        raise UserError(
            f"a price needs both directions, and {missing} is missing: "
            "--price-in and --price-out are prices of a million prompt and response tokens"
        )
    for name, price in (("--price-in", price_in), ("--price-out", price_out)):
        if not math.isfinite(price):
            raise UserError(f"{name} takes the price of a million tokens, got {price}")
    return Price(price_in, price_out)


def tokens_of(folder: RunFolder) -> Tokens | None:
    """Return the tokens of a finished run; None without a table of episodes that can be read."""
    import polars as pl

    table: Path = folder.path / "episodes.parquet"
    columns = ["prompt_tokens", "response_tokens", "reward"]
    try:
        # Opened here, because polars takes a name for a pattern.
        with table.open("rb") as file:
            rows = pl.read_parquet(file, columns=columns)
    except (OSError, pl.exceptions.PolarsError, pl.exceptions.PanicException):
        return None
    return Tokens(
        prompt=int(rows["prompt_tokens"].sum()),
        response=int(rows["response_tokens"].sum()),
        rollouts=len(rows),
        right=float(rows["reward"].sum()),
    )


def tokens_per_answer(arm: Arm) -> tuple[float, float] | None:
    """Return mean prompt and response tokens of a successful rollout; None if not counted."""
    prompt, response = arm["prompt_tokens_per_rollout"], arm["response_tokens_per_rollout"]
    return None if prompt is None or response is None else (prompt, response)


def per_right_answer(arm: Arm, cost: float) -> float | None:
    """Return the cost of a right answer, given the cost per answer; None if none was right."""
    share_right = arm["accuracy_final"]["mean"]
    return cost / share_right if share_right > 0 else None


def significant(value: float | None, digits: int = 2) -> str:
    """Return a number with so many significant digits and no more, `1,900`; a dash for None."""
    if value is None:
        return "-"
    if value == 0:
        return "0"
    # Rounded before its length is known: 99.6 becomes 100, which needs no decimals.
    rounded = float(f"{value:.{digits}g}")
    whole = abs(rounded) >= 10 ** (digits - 1)
    return f"{rounded:,.0f}" if whole else f"{rounded:.{digits}g}"

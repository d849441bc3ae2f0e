"""Properties of a comparison's pairs that several tables and notes use."""

from __future__ import annotations

from harness.compare.keys import Comparison, Pair


def pairs_by_arm(comparison: Comparison) -> dict[str, Pair]:
    """Return every arm's pair; the baseline has none."""
    return {pair["arm"]: pair for pair in comparison["pairs"]}


def identical_arms(comparison: Comparison) -> list[str]:
    """Return the arms that gave the same answers as the baseline in every step."""
    return [pair["arm"] for pair in comparison["pairs"] if pair["identical"]]


def counted_in(comparison: Comparison) -> str:
    """Return the unit that verdicts count as independent: starts, if any pair has several."""
    for pair in comparison["pairs"]:
        if "starts" in pair:
            return "starts"
    return "seeds"


def any_one_seed(comparison: Comparison) -> bool:
    """Return whether any pair compares single checkpoints, with one common seed or none."""
    return any(pair["one_seed"] for pair in comparison["pairs"])

"""An arm of a comparison: the figures of its runs, and their means over seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal, cast

from harness.compare import statistics
from harness.compare.estimates import accuracy
from harness.compare.keys import Arm, Figures, Means
from harness.compare.measures import mean_by_name, measure
from harness.compare.scores import scores, span_of, worst_cases
from harness.runs.rows import Trained

if TYPE_CHECKING:
    from harness.runs.reading import Run


def arm_of(name: str, runs: Sequence[Run]) -> Arm:
    """Return the arm of these runs, ordered by seed."""
    import numpy as np

    per_seed = [measure(run) for run in runs]
    final = scores(runs)
    initial = final.clear()
    if runs[0].trained:
        # A run without a validation before training has no first accuracy; the others still do.
        validated_first = [run for run in runs if 0 in run.val_curve()]
        initial = scores(validated_first or runs, 0)
    started, reached = accuracy(initial, span_of(runs)), accuracy(final, span_of(runs))
    assert reached is not None, f"{name} has scores"
    # Cells are [seeds, clusters]. A cell without scored questions is unknown, not 0.
    sums, counts = statistics.cells(final)
    matrix = sums / np.where(counts > 0, counts, np.nan)
    return {
        "name": name,
        "agent": runs[0].record["agent"],
        "agent_match": runs[0].record["agent_match"],
        "seeds": [run.seed for run in runs],
        "parity": per_seed[0]["parity"],
        "accuracy_initial": started.data() if started else None,
        "accuracy_final": reached.data(),
        "interquartile_mean": statistics.interquartile_mean(matrix.ravel()),
        "interquartile_mean_interval": statistics.interquartile_mean_interval(matrix),
        **_means(per_seed),
        "shares": _mean_parts(per_seed, "shares"),
        "reward_parts": _mean_parts(per_seed, "reward_parts"),
        "unscored": sum(figures["unscored"] for figures in per_seed),
        "accuracy_bounds": worst_cases(runs),
        "failures": _failures(per_seed),
        "unknown_answers": sum(figures["unknown_answers"] for figures in per_seed),
        "trained_by_role": _roles(per_seed),
        "per_seed": per_seed,
    }


def _roles(per_seed: Sequence[Figures]) -> dict[str, Trained]:
    """Return trained transitions and tokens by role, as means over seeds."""
    totals: dict[str, Trained] = {}
    for figures in per_seed:
        for role, trained in figures["trained_by_role"].items():
            total = totals.setdefault(role, {"transitions": 0, "tokens": 0})
            total["transitions"] += trained["transitions"]
            total["tokens"] += trained["tokens"]
    # Divided by all seeds: a seed in which the role was not trained counts as 0.
    for total in totals.values():
        total["transitions"] /= len(per_seed)
        total["tokens"] /= len(per_seed)
    return totals


def _failures(per_seed: Sequence[Figures]) -> dict[str, int]:
    """Return the number of failures by cause, over all seeds."""
    counts: dict[str, int] = {}
    for figures in per_seed:
        for cause, count in figures["failures"].items():
            counts[cause] = counts.get(cause, 0) + count
    return counts


def _means(per_seed: Sequence[Figures]) -> Means:
    rows = cast(Sequence[Mapping[str, float | None]], per_seed)
    means: dict[str, float | None] = {}
    for key in Means.__annotations__:
        means[key] = _mean(rows, key)
    return cast(Means, means)


def _mean_parts(
    per_seed: Sequence[Figures], key: Literal["shares", "reward_parts"]
) -> dict[str, float]:
    """Return the mean of every part over the seeds that have it."""
    # Unlike a role that was not trained, a part that is missing was not measured, so it is no 0.
    values: dict[str, list[float]] = {}
    for figures in per_seed:
        for name, value in figures[key].items():
            values.setdefault(name, []).append(value)
    return mean_by_name(values)


def _mean(rows: Sequence[Mapping[str, float | None]], key: str) -> float | None:
    """Return the mean of a figure over the seeds that have it."""
    measured: list[float] = []
    for row in rows:
        value = row[key]
        if value is not None:
            measured.append(value)
    return sum(measured) / len(measured) if measured else None

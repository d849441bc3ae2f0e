"""An arm of a comparison: the figures of its runs, and their means over seeds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, cast

from harness.compare import statistics
from harness.compare.estimates import accuracy
from harness.compare.keys import Arm, Figures, Means, Trained
from harness.compare.measures import measure
from harness.compare.scores import scores, span_of, worst_cases

if TYPE_CHECKING:
    from harness.compare.runs import Run


def arm_of(name: str, runs: Sequence[Run]) -> Arm:
    """Return the arm of these runs, ordered by seed."""
    import numpy as np

    per_seed = [measure(run) for run in runs]
    final = scores(runs)
    initial = (
        scores([run for run in runs if 0 in run.val_curve()] or runs, 0)
        if runs[0].trained
        else final.clear()
    )
    started, reached = accuracy(initial, span_of(runs)), accuracy(final, span_of(runs))
    assert reached is not None, f"{name} has scores"
    sums, counts = statistics.cells(final)
    matrix = sums / np.where(counts > 0, counts, np.nan)
    causes = dict.fromkeys(cause for figures in per_seed for cause in figures["failures"])
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
        "shares": _mean_parts([figures["shares"] for figures in per_seed]),
        "reward_parts": _mean_parts([figures["reward_parts"] for figures in per_seed]),
        "unscored": sum(figures["unscored"] for figures in per_seed),
        "accuracy_bounds": worst_cases(runs),
        "failures": {
            cause: sum(figures["failures"].get(cause, 0) for figures in per_seed)
            for cause in causes
        },
        "trained_by_role": _roles(per_seed),
        "per_seed": per_seed,
    }


def _roles(per_seed: Sequence[Figures]) -> dict[str, Trained]:
    """Return trained transitions and tokens by role, as means over seeds."""
    found: dict[str, Trained] = {}
    for role in dict.fromkeys(role for figures in per_seed for role in figures["trained_by_role"]):
        known = [
            figures["trained_by_role"][role]
            for figures in per_seed
            if role in figures["trained_by_role"]
        ]
        transitions, tokens = (
            sum(one["transitions"] for one in known),
            sum(one["tokens"] for one in known),
        )
        found[role] = {"transitions": transitions / len(per_seed), "tokens": tokens / len(per_seed)}
    return found


def _means(per_seed: Sequence[Figures]) -> Means:
    rows = cast(Sequence[Mapping[str, float | None]], per_seed)
    return cast(Means, {key: _mean(row[key] for row in rows) for key in Means.__annotations__})


def _mean_parts(parts: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the mean of every part over the seeds that have it."""
    known = {name: [one[name] for one in parts if name in one] for one in parts for name in one}
    return {name: sum(values) / len(values) for name, values in known.items()}


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None

"""Fair views on the amount of training: as configured, at equal optimizer steps or trained tokens.

More trained roles mean more transitions, so more optimizer steps and more tokens from the same
rollouts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from harness.compare.estimates import crossed_mean
from harness.compare.measures import optimizer_steps
from harness.compare.scores import paired_differences

if TYPE_CHECKING:
    import polars as pl

    from harness.compare.keys import View, ViewArm, ViewKey
    from harness.compare.runs import Run

VIEWS: dict[ViewKey, str] = {
    "stock": "As configured: the last checkpoint of every run",
    "equal_optimizer_steps": "At the optimizer steps of the arm with the fewest",
    "equal_trained_tokens": "At the trained tokens of the arm with the fewest",
}


def views(arms: Mapping[str, Sequence[Run]], baseline: str, width: float = 1.0) -> list[View]:
    """Return each arm's accuracy in each view: the last validation within every run's budget.

    Trainings only.

    Args:
        baseline: The arm that differences refer to.
        width: Largest difference of two rewards.
    """
    runs = [run for group in arms.values() for run in group]
    if any(not run.trained or not len(run.training) for run in runs):
        return []
    counted = {run.id: optimizer_steps(run) for run in runs}
    found: list[View] = []
    for key, title in VIEWS.items():
        index = {"stock": 0, "equal_optimizer_steps": 1, "equal_trained_tokens": 2}[key]
        budget = None if key == "stock" else min(entries[-1][index] for entries in counted.values())
        rows: dict[str, ViewArm] = {}
        at = {
            name: [_within(run, counted[run.id], index, budget) for run in group]
            for name, group in arms.items()
        }
        reached = {name: _scores(group, at[name]) for name, group in arms.items()}
        for name, seen in at.items():
            values = [value for _, value, _ in seen if value is not None]
            mine, theirs = reached[name], reached[baseline]
            difference = None
            if name != baseline and mine is not None and theirs is not None:
                difference = crossed_mean(paired_differences(mine, theirs)[0], width)
            rows[name] = {
                "accuracy": sum(values) / len(values) if values else None,
                "difference": difference.data() if difference else None,
                "steps": [step for step, _, _ in seen],
                "used": None
                if budget is None
                else sum(used for *_, used in seen) / len(seen) / max(budget, 1),
            }
        found.append({"key": key, "title": title, "budget": budget, "arms": rows})
    return found


def _scores(
    group: Sequence[Run], seen: Sequence[tuple[int, float | None, int]]
) -> pl.DataFrame | None:
    """Return an arm's scores at these steps; None if a run was not validated there."""
    import polars as pl

    if any(value is None for _, value, _ in seen):
        return None
    return pl.concat([run.scores(step) for run, (step, *_) in zip(group, seen, strict=True)])


def _within(
    run: Run, counted: Sequence[tuple[int, int, int]], index: int, budget: int | None
) -> tuple[int, float | None, int]:
    """Return the last validated step within the budget, its accuracy, and its count."""
    spent = {entry[0]: entry[index] for entry in counted} | {0: 0}
    curve = run.val_curve()
    fitting = [step for step in curve if budget is None or spent.get(step, 0) <= budget]
    if not fitting:
        return 0, None, 0
    step = max(fitting)
    return step, curve[step], spent.get(step, 0)

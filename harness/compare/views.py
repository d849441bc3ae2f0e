"""Comparisons at equal budgets: as configured, at equal optimizer steps or trained tokens.

More trained roles mean more transitions, so more optimizer steps and more tokens from the same
rollouts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from harness.compare.amounts import optimizer_steps, trained_by_step, updates_weights
from harness.compare.estimates import crossed_mean
from harness.compare.scores import paired_differences

if TYPE_CHECKING:
    import polars as pl

    from harness.compare.keys import View, ViewArm, ViewKey
    from harness.runs.reading import Run

VIEWS: dict[ViewKey, str] = {
    "stock": "As configured: the last checkpoint of every run",
    "equal_optimizer_steps": "At the optimizer steps of the arm with the fewest",
    "equal_trained_tokens": "At the trained tokens of the arm with the fewest",
}
"""Titles, in the order of the counts of `optimizer_steps`: step, optimizer steps, tokens."""


class Reached(NamedTuple):
    """The last validation of a run within a budget."""

    step: int
    value: float | None
    """Its accuracy; None without a validation within the budget."""
    used: int
    """How much of the budget was used until then."""


def views(arms: Mapping[str, Sequence[Run]], baseline: str, width: float = 1.0) -> list[View]:
    """Return each arm's accuracy in each view: the last validation within every run's budget.

    Trainings only, and only if rollouts of every step are recorded. Arms without updates of weights
    have no view: with them every budget would be 0.

    Args:
        baseline: The arm that differences refer to.
        width: Largest difference of two rewards.
    """
    arms = {name: group for name, group in arms.items() if all(map(updates_weights, group))}
    if baseline not in arms:
        return []
    counted: dict[str, list[tuple[int, int, int]]] = {}
    for group in arms.values():
        for run in group:
            if not run.trained or not trained_by_step(run):
                return []
            counted[run.id] = optimizer_steps(run)
            counted_steps = {counts[0] for counts in counted[run.id]}
            if not counted_steps.issuperset(step for step in run.steps["step"] if step > 0):
                return []
    made: list[View] = []
    for place, (key, title) in enumerate(VIEWS.items()):
        # The run that used least sets the budget: with a larger one, it would be compared with
        # runs that were trained on more.
        budget = None if key == "stock" else min(counts[-1][place] for counts in counted.values())
        reached: dict[str, list[Reached]] = {}
        for name, group in arms.items():
            points = []
            for run in group:
                points.append(_within(run, counted[run.id], place, budget))
            reached[name] = points
        made.append(
            {
                "key": key,
                "title": title,
                "budget": budget,
                "arms": _view_arms(arms, reached, baseline, budget, width),
            }
        )
    return made


def _view_arms(
    arms: Mapping[str, Sequence[Run]],
    reached: Mapping[str, Sequence[Reached]],
    baseline: str,
    budget: int | None,
    width: float,
) -> dict[str, ViewArm]:
    """Return every arm's row of a view, with its difference to the baseline."""
    scores = {name: _scores(group, reached[name]) for name, group in arms.items()}
    rows: dict[str, ViewArm] = {}
    for name, points in reached.items():
        mine, theirs = scores[name], scores[baseline]
        difference = None
        if name != baseline and mine is not None and theirs is not None:
            difference = crossed_mean(paired_differences(mine, theirs)[0], width)
        values: list[float] = []
        steps: list[int] = []
        used = 0
        for point in points:
            steps.append(point.step)
            used += point.used
            if point.value is not None:
                values.append(point.value)
        rows[name] = {
            "accuracy": sum(values) / len(values) if values else None,
            "difference": difference.data() if difference else None,
            "steps": steps,
            # A run without any update uses nothing, so the budget may be 0.
            "used": None if budget is None else used / len(points) / max(budget, 1),
        }
    return rows


def _scores(group: Sequence[Run], points: Sequence[Reached]) -> pl.DataFrame | None:
    """Return an arm's scores at these steps; None if a run was not validated there."""
    import polars as pl

    tables: list[pl.DataFrame] = []
    for run, point in zip(group, points, strict=True):
        # Without one of its seeds, an arm's mean would be that of the other seeds, unnoticed.
        if point.value is None:
            return None
        tables.append(run.scores(point.step))
    return pl.concat(tables)


def _within(
    run: Run, counted: Sequence[tuple[int, int, int]], place: int, budget: int | None
) -> Reached:
    """Return the last validation within the budget.

    Args:
        counted: Step, optimizer steps up to it, trained tokens up to it.
        place: Which of them the budget limits.
    """
    spent: dict[int, int] = {}
    for counts in counted:
        spent[counts[0]] = counts[place]
    spent[0] = 0  # the validation before training is free, whatever the budget
    curve = run.val_curve()
    fitting = []
    for step in curve:
        if budget is None or spent.get(step, 0) <= budget:
            fitting.append(step)
    if not fitting:
        return Reached(0, None, 0)
    step = max(fitting)
    return Reached(step, curve[step], spent.get(step, 0))

"""The parts of a run that every tracker gets."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import polars as pl

from harness.runs.reading import Run
from harness.util.parsing import flatten

EPISODES = 64
"""Rollouts in the sample, from the last validation, ordered by task."""
SHOWN = ("task_id", "question", "answer", "outcome", "reward", "reward_reason", "detail")
CUT = 2_000
"""Most characters of a text in the sample."""
Scalar = str | int | float | bool


@dataclass(frozen=True, slots=True)
class Contents:
    """The exported parts of a run.

    Attributes:
        curves: Numeric values by step, by name.
        config: Dotted keys.
        figures: Results.
        episodes: Rows of the sample, by column.
    """

    name: str
    agent: str
    curves: dict[str, dict[int, float]]
    config: dict[str, Scalar]
    figures: dict[str, Scalar]
    episodes: dict[str, list[str]]

    def by_step(self) -> dict[int, dict[str, float]]:
        """Return the curves by step, then by name, in order."""
        steps: dict[int, dict[str, float]] = defaultdict(dict)
        for name, values in self.curves.items():
            for step, value in values.items():
                steps[step][name] = value
        return dict(sorted(steps.items()))

    def rows(self) -> list[list[str]]:
        """Return the sample as one list per row."""
        return [list(row) for row in zip(*self.episodes.values(), strict=True)]


def contents(run: Run) -> Contents:
    """Read a run, without token ids, gold and prompts."""
    steps = run.steps
    curves = {}
    for name in steps.columns:
        if name != "step" and steps[name].dtype.is_numeric():
            rows = steps.select("step", name).drop_nulls(name).rows()
            curves[name] = {int(step): float(value) for step, value in rows}
    # Trackers take scalars alone. A list in the result is no figure, as the curve is exported by
    # step; lists of the configuration become texts.
    figures: dict[str, Scalar] = {"status": run.record["status"]}
    for key, value in flatten(dict(run.record["result"] or {})).items():
        if _is_scalar(value):
            figures[key] = value
    config = {}
    for key, value in flatten(dict(run.record["config"])).items():
        config[key] = value if _is_scalar(value) else str(value)
    return Contents(
        name=run.id,
        agent=run.record["agent"],
        curves=curves,
        config=config,
        figures=figures,
        episodes=_sample(run.episodes),
    )


def _is_scalar(value: object) -> bool:
    return isinstance(value, str | int | float | bool)


def _sample(episodes: pl.DataFrame) -> dict[str, list[str]]:
    validated = episodes.filter(pl.col("phase") == "val")
    last = validated.filter(pl.col("step") == pl.col("step").max()).sort("task_id").head(EPISODES)
    sample = {}
    for name in SHOWN:
        if name in last.columns:
            sample[name] = list(map(_shortened, last[name]))
    return sample


def _shortened(value: object) -> str:
    return "" if value is None else str(value)[:CUT]

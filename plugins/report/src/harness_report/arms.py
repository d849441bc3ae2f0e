"""Runs by arm, and the terms that charts use for all of them together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from harness.util.formatting import measured

if TYPE_CHECKING:
    from harness.runs.reading import Run

Arms = Mapping[str, Sequence["Run"]]


def all_runs(arms: Arms) -> list[Run]:
    """Return the runs of all arms."""
    every: list[Run] = []
    for runs in arms.values():
        every += runs
    return every


def last_of(arms: Arms) -> str:
    """Return the name of the last rollouts of these runs."""
    trained = any(run.trained for run in all_runs(arms))
    return "last validation" if trained else "evaluation"


def graded_of(arms: Arms) -> bool:
    """Return whether the mean reward of any run is no accuracy."""
    return any(run.graded for run in all_runs(arms))


def several_in(arms: Mapping[str, Sequence[object]]) -> bool:
    """Return whether any arm has several runs, so that there are means over seeds, and bands."""
    return any(len(runs) > 1 for runs in arms.values())


def measured_of(arms: Arms) -> str:
    """Return the name of the mean reward."""
    return measured(graded_of(arms))

"""Comparison of runs: comparability, differences with uncertainty, and cost.

The package is also callable as the function `harness.compare`, because Python gives both that
name.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from harness.compare.compared import Compared


def compare(
    *runs: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    baseline: str | None = None,
    allow: str | Iterable[str] = (),
    margin: float | None = None,
    references: bool | None = None,
    runs_dir: str | os.PathLike[str] = "runs",
) -> Compared:
    """Compare runs, as `harness compare` does: differences, their uncertainty and the cost.

    Args:
        runs: Runs, folders of runs, or a study's file or folder; also in lists.
        baseline: The arm, or its agent, that others are compared with.
        allow: Identity key or keys that may differ.
        margin: Differences below this count as none, e.g. 0.05; a study declares its own.
        references: Whether to show figures published by others; by default if the task set has any.
        runs_dir: Folder of the runs that are given by id.

    Raises:
        NotComparable: Runs differ in something that must be identical.
        UserError: A run or the baseline does not exist, or no run has finished.
    """
    from harness.compare.compared import Compared
    from harness.compare.comparison import compare as of_selection
    from harness.compare.references import reference_rows
    from harness.compare.selection import select

    paths: list[Path] = []
    for given in runs:
        # A path is a text too, and a text must not be read letter by letter.
        several = [given] if isinstance(given, str | os.PathLike) else given
        paths += map(Path, several)
    allowed = [allow] if isinstance(allow, str) else allow
    comparison = of_selection(select(paths, Path(runs_dir)), baseline, allowed, margin)
    if references is False:
        return Compared(comparison, [])
    return Compared(comparison, reference_rows(None if references else comparison["task_set"]))


class _Called(ModuleType):
    __call__ = staticmethod(compare)


sys.modules[__name__].__class__ = _Called

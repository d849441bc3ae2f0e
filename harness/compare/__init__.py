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

    paths = [
        Path(path)
        for one in runs
        for path in ([one] if isinstance(one, str | os.PathLike) else one)
    ]
    found = of_selection(
        select(paths, Path(runs_dir)),
        baseline,
        [allow] if isinstance(allow, str) else allow,
        margin,
    )
    rows = [] if references is False else reference_rows(None if references else found["task_set"])
    return Compared(found, rows)


class _Called(ModuleType):
    __call__ = staticmethod(compare)


sys.modules[__name__].__class__ = _Called

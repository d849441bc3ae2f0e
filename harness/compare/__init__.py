"""Comparison of runs: whether they may be compared, what differs, how sure that is, and what it cost.

The package is the function `harness.compare`, too, since Python knows both by that name.
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
    """Compare runs, as `harness compare` does: what differs, by how much, how sure that is, and what it cost.

    Args:
        runs: Runs, folders of runs, or a study's file or folder; also in lists.
        baseline: The arm, or its agent, that others are compared with.
        allow: A key, or several, that may differ though they should not.
        margin: Differences below this are none, e.g. 0.05; a study states its own.
        references: Whether figures published by others are shown; by default those for the task set.
        runs_dir: Where runs named by id are looked for.

    Raises:
        NotComparable: Runs differ in what must be identical.
        UserError: There is no such run or baseline, or none has finished.
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

"""Agents of runs, wherever their files are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from harness.util.parsing import digest

if TYPE_CHECKING:
    from harness.runs.reading import Run

Mark = tuple[str, ...]
"""What two runs of one agent share: its name in the configuration, or recorded name and source."""


def canonical_agents(runs: Sequence[Run]) -> dict[str, str]:
    """Return one name for each agent, by every name that configurations give it.

    A configuration names an agent in a file by its absolute path, which differs between checkouts
    of one project. The agent is the same at two paths if records have the same name, which is
    without the folder, and the same hash of its source. Where a record has no hash, the path
    decides. So it does where the paths have a run with the same settings and seed: such copies
    were compared on purpose.

    A source that changed at one path is still one agent here. `check_parity` refuses it, unless
    every version is certified.

    Returns:
        Names from configurations: of several paths of one agent, the first in alphabetical order.
    """
    groups: list[set[Mark]] = []
    for run in runs:
        group = _marks(run)
        others: list[set[Mark]] = []
        for earlier in groups:
            if group.isdisjoint(earlier):
                others.append(earlier)
            else:
                group |= earlier
        groups = [*others, group]
    canonical: dict[str, str] = {}
    for group in groups:
        paths = sorted(mark[0] for mark in group if len(mark) == 1)
        if len(paths) > 1 and _share_settings(paths, runs):
            canonical |= {path: path for path in paths}
        else:
            canonical |= dict.fromkeys(paths, paths[0])
    return canonical


def _share_settings(paths: Sequence[str], runs: Sequence[Run]) -> bool:
    """Return whether runs of two of these paths are equal in settings, seed and kind."""
    path_of: dict[str, str] = {}
    for run in runs:
        path = str(run.record["config"].get("agent"))
        if path not in paths:
            continue
        settings = digest({**run.record["config"], "agent": "", "kind": run.record["kind"]})
        if path_of.setdefault(settings, path) != path:
            return True
    return False


def _marks(run: Run) -> set[Mark]:
    marks: set[Mark] = {(str(run.record["config"].get("agent")),)}
    if source := run.record.get("agent_source"):
        marks.add((run.record["agent"], source))
    return marks

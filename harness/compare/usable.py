"""Choose the runs that count: one result for every arm, start and seed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from harness.compare.circumstances import validation_remarks
from harness.compare.policies import of_distinct_policies
from harness.compare.selection import why_left_out
from harness.compare.starts import number_starts
from harness.errors import NothingToCompare

if TYPE_CHECKING:
    from harness.runs.reading import Run


def has_scores(run: Run) -> bool:
    """Return whether anything of a run's last validation was scored."""
    rewards = run.validation()["reward"]
    return rewards.null_count() < len(rewards)


def usable_runs(runs: Sequence[Run]) -> tuple[list[Run], list[str]]:
    """Return the newest finished, validated run per arm, start and seed, and remarks on omissions.

    Raises:
        NothingToCompare: There is none.
    """
    chosen: dict[tuple[str, int], Run] = {}
    remarks: list[str] = []
    number_starts(runs)
    # Two runs of one arm and seed are not independent: both together would count one seed twice
    # and make the intervals too short.
    for run in runs:
        if not run.finished or not has_scores(run):
            continue
        earlier = chosen.get((run.arm, run.pairing))
        if earlier is not None and earlier.id != run.id:
            older, run = sorted((earlier, run), key=lambda either: either.id)
            remarks.append(
                f"{run.arm} seed {run.seed} ran twice; "
                f"{older.id} is left out for the newer {run.id}."
            )
        chosen[(run.arm, run.pairing)] = run
    if not chosen:
        # A few states suffice to show whether the runs go on or have failed.
        states = []
        for run in runs[:4]:
            why = why_left_out(run, ()) if run.finished else run.state
            states.append(f"{run.name}: {why}")
        raise NothingToCompare(f"no run has finished and been validated yet ({', '.join(states)})")
    usable, repeated = of_distinct_policies(list(chosen.values()))
    return usable, remarks + repeated + validation_remarks(usable)

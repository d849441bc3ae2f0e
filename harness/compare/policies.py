"""The policies of evaluations: their names in a comparison, and how often each counts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from harness.runs.reading import Run


def name_policies(runs: Sequence[Run]) -> None:
    """Add the policy to the names of evaluations that would otherwise look like one made twice."""
    policies: dict[tuple[str, int], set[str]] = {}
    for run in runs:
        if not run.trained:
            policies.setdefault((run.arm, run.seed), set()).add(run.policy)
    ambiguous: dict[str, set[str]] = {}
    for (arm, _), several in policies.items():
        if len(several) > 1:
            ambiguous.setdefault(arm, set()).update(several)
    for run in runs:
        if run.arm in ambiguous and not run.trained:
            run.arm += f" {_policy_label(run)}"


def of_distinct_policies(runs: Sequence[Run]) -> tuple[list[Run], list[str]]:
    """Return one evaluation of every policy in each arm, and remarks on those that are left out.

    Seeds count as independent trainings. Evaluations of one policy with several seeds are none.
    """
    kept: dict[tuple[str, str], Run] = {}
    distinct: list[Run] = []
    left: dict[tuple[str, str], list[int]] = {}
    for run in sorted(runs, key=lambda run: run.pairing):
        key = (run.arm, run.policy)
        if run.trained or key not in kept:
            kept.setdefault(key, run)
            distinct.append(run)
        else:
            left.setdefault(key, []).append(run.seed)
    remarks: list[str] = []
    for key, seeds in left.items():
        run = kept[key]
        others = ", ".join(map(str, seeds))
        remarks.append(
            f"{run.arm}: the evaluations with seed {others} are left out. They used the policy of "
            f"the one with seed {run.seed}, and one policy counts once. "
            "Several rollouts of a task: harness eval --samples."
        )
    return sorted(distinct, key=runs.index), remarks


def _policy_label(run: Run) -> str:
    """Return the policy of an evaluation in words that fit into the name of an arm."""
    if run.record.get("parent"):
        return f"of {run.policy}"
    name = str(run.record["config"]["policy"]["path"]) or "policy"
    return f"of {Path(name).name} {run.policy[:8]}"

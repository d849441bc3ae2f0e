"""The policies of evaluations: their names in a comparison, and how often each counts."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from harness.runs.reading import Run


def name_policies(runs: Sequence[Run]) -> None:
    """Add the policy to the names of evaluations that would otherwise look like one made twice.

    A kind of policies is a step that trainings reached, or a model without a known training. An arm
    is split by kind only if one of its seeds has several kinds.
    """
    by_arm: dict[str, list[Run]] = {}
    for run in runs:
        if not run.trained:
            by_arm.setdefault(run.arm, []).append(run)
    for arm_runs in by_arm.values():
        kinds_by_seed: dict[int, set[str]] = {}
        for run in arm_runs:
            kinds_by_seed.setdefault(run.seed, set()).add(_kind_of_policy(run))
        if all(len(kinds) == 1 for kinds in kinds_by_seed.values()):
            continue
        for run in arm_runs:
            run.arm += f" {_kind_of_policy(run)}"


def _kind_of_policy(run: Run) -> str:
    """Return what the policies of an arm have in common, in words for the arm's name."""
    if parent := run.record.get("parent"):
        return f"trained to step {parent['step']}"
    model = str(run.record["identity"]["model"])
    # Names may be alike in their first characters, hashes are not.
    return f"model {model[:8] if re.fullmatch('[0-9a-f]{32,}', model) else model}"


def of_distinct_policies(runs: Sequence[Run]) -> tuple[list[Run], list[str]]:
    """Return one evaluation of every policy in each arm, and remarks on those that are left out.

    Seeds count as independent trainings. Evaluations of one policy with several seeds are not.
    """
    # Of the seeds of one policy, the one that most arms have: runs of one seed are paired.
    arms_with_seed = Counter(run.pairing for run in runs)
    kept: dict[tuple[str, str], Run] = {}
    left: dict[tuple[str, str], list[int]] = {}
    for run in sorted(runs, key=lambda run: (-arms_with_seed[run.pairing], run.pairing)):
        key = (run.arm, run.id if run.trained else policy_of(run))
        if key in kept:
            left.setdefault(key, []).append(run.seed)
        else:
            kept[key] = run
    kept_ids = {id(run) for run in kept.values()}
    distinct = [run for run in runs if id(run) in kept_ids]
    remarks: list[str] = []
    for key, seeds in left.items():
        run = kept[key]
        others = ", ".join(map(str, sorted(seeds)))
        remarks.append(
            f"{run.arm}: the evaluations with seed {others} are left out. They used the policy of "
            f"the one with seed {run.seed}, and one policy counts once. "
            "Several rollouts of a task: harness eval --samples."
        )
    return distinct, remarks


def policy_of(run: Run) -> str:
    """Return what decides the answers of an evaluation: the policies of all roles, and examples.

    Two trainings may end with equal weights, such as those that change prompts only. They are two
    policies all the same.
    """
    identity = run.record["identity"]
    parent = run.record.get("parent")
    policy = [parent["run"], parent["step"]] if parent else identity["model"]
    others = [identity.get("role_models"), identity.get("demonstrations")]
    return json.dumps([policy, *others], sort_keys=True)

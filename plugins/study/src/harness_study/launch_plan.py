"""The plan of a study's launch: its runs with their times, and what to know before they start."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from harness.compare.estimates import seeds_for_equivalence
from harness.errors import ConfigError, UserError
from harness.plugins import make_trainer, reward_of
from harness.runs.folder import RunFolder
from harness.runs.reading import find_all
from harness_study.checkpoint_space import checkpoint_advice, checkpoint_space
from harness_study.costs import planned_cost, published
from harness_study.display import Plan, PlannedJob
from harness_study.plan import Job, differences
from harness_study.slots import Slot
from harness_study.state import Step
from harness_study.timing import makespan_s, measured, steps_of, timing_for


def launch_plan(name: str, steps: list[Step], runs_dir: Path, slots: list[Slot]) -> Plan:
    """Return the plan of a launch: the runs in their order, with estimated times.

    Args:
        runs_dir: Parent of the study's folder; times are estimated from the runs in it.
        slots: Places for runs, one at a time in each.
    """
    known = measured(find_all(runs_dir)) if runs_dir.is_dir() else []
    # Runs of an arm have equally many steps, and counting them may read a whole task set.
    counted: dict[str, int | None] = {}
    rows: list[PlannedJob] = []
    for step in steps:
        job = step.job
        if job.arm not in counted:
            counted[job.arm] = steps_of(job.config)
        count = counted[job.arm] if job.kind == "train" else None
        row: PlannedJob = {
            "key": job.key,
            "arm": job.arm,
            "seed": job.seed,
            "kind": job.kind,
            "action": step.action,
            "why": step.why,
            "steps": count,
            "estimate_s": None,
            "estimate_from": None,
        }
        timing = timing_for(job.config, known)
        if step.action != "skip" and timing is not None and count is not None:
            row |= {"estimate_s": timing.of(count), "estimate_from": timing.source}
        rows.append(row)
    missing = without_estimate = 0
    estimates_s: list[float] = []
    for row in rows:
        if row["action"] == "skip":
            continue
        missing += 1
        # Jobs without an estimate are counted apart: a total without them would look complete.
        if row["estimate_s"] is None:
            without_estimate += 1
        else:
            estimates_s.append(row["estimate_s"])
    return {
        "study": name,
        "jobs": rows,
        "to_run": missing,
        "estimate_s": makespan_s(estimates_s, len(slots)) if estimates_s else None,
        "runs_at_once": len(slots),
        "cores_per_run": len(slots[0].cores),
        "gpus": [slot.gpus for slot in slots if slot.gpus] or None,
        "without_estimate": without_estimate,
        "differences": differences(step.job for step in steps),
    }


def add_warnings(
    plan: Plan, steps: list[Step], runs_dir: Path, uncertified: list[str], seeds_needed: int | None
) -> None:
    """Add missing certificates, disk space and out-of-reach equivalence to a plan.

    Args:
        uncertified: Strict agents without a certificate.
        seeds_needed: Fewest seeds for *equivalent*, or None if the study has enough.
    """
    if uncertified:
        plan["uncertified"] = uncertified
    if seeds_needed is not None:
        plan["seeds_for_equivalence"] = seeds_needed
    space = checkpoint_space(steps, plan["runs_at_once"], runs_dir)
    if space is not None:
        plan["checkpoint_bytes"], plan["free_bytes"] = space
        plan["checkpoint_advice"] = checkpoint_advice(steps)


def refuse_lost_policies(jobs: Iterable[Job]) -> None:
    """Refuse evaluations of policies that their trainings do not keep.

    Raises:
        ConfigError: Names such a training.
    """
    trainings: dict[str | None, Job] = {}
    for job in jobs:
        if job.kind == "train":
            trainings[job.key] = job
        elif trainings[job.parent].config.train.keep_checkpoints == 0:
            raise ConfigError(
                f"evaluate: '{job.arm}', seed {job.seed}, needs the policy of its training, and "
                "train.keep_checkpoints=0 keeps none. Use train.keep_checkpoints=1"
            )


def refuse_missing_policies(steps: list[Step]) -> None:
    """Refuse evaluations of finished trainings that kept no checkpoint.

    Raises:
        UserError: Names such a training.
    """
    finished: dict[str | None, Path] = {}
    for step in steps:
        if step.job.kind == "train":
            if step.action == "skip" and step.folder is not None:
                finished[step.job.key] = step.folder
            continue
        folder = finished.get(step.job.parent)
        if step.action == "skip" or folder is None:
            continue
        if not make_trainer(step.job.config).checkpoints(RunFolder(folder)):
            raise UserError(
                f"{step.job.key} evaluates the policy of {folder}, which has no checkpoint. "
                "Remove that folder, so that the study trains it again, or leave out evaluations "
                "with --only"
            )


def add_cost(plan: Plan, steps: list[Step], runs_dir: Path) -> None:
    """Add the cost of the missing trainings, by this machine's runs, else by published records."""
    own = measured(find_all(runs_dir)) if runs_dir.is_dir() else []
    for of_published in (False, True):
        # Published records are many, so they are read only if no run of this machine is similar.
        known = published() if of_published else own
        jobs = []
        for step, row in zip(steps, plan["jobs"], strict=True):
            timing, count = timing_for(step.job.config, known), row["steps"]
            if step.action != "skip" and timing is not None and count is not None:
                jobs.append((step.job.config, timing, count))
        if (cost := planned_cost(jobs, of_published)) is not None:
            plan["cost"] = cost
            return


def out_of_reach(jobs: list[Job], margin: float | None) -> int | None:
    """Return the fewest seeds for *equivalent*, or None if the study has enough, or no margin."""
    seeds: dict[str, set[int]] = {}
    for job in jobs:
        seeds.setdefault(job.arm, set()).add(job.seed)
    if margin is None or len(seeds) < 2:
        return None
    # With the widest range of rewards the margin is the smallest share, and needs the most seeds.
    widths: list[float] = []
    for job in jobs:
        reward = reward_of(job.config)
        widths.append(reward.high - reward.low)
    width = max(widths)
    least = seeds_for_equivalence(margin / width, family=len(seeds) - 1)
    return least if max(map(len, seeds.values())) < least else None

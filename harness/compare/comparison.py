"""Compare arms, as one plain-data document for tables, reports and tests."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from harness.compare import evidence, statistics
from harness.compare.agent_parity import check_parity
from harness.compare.agreement import agree
from harness.compare.arms import arm_of
from harness.compare.busy import busy
from harness.compare.by_role import held_by_role
from harness.compare.circumstances import circumstances, times_compare
from harness.compare.estimates import (
    COLLAPSE,
    MIN_SEEDS,
    Estimate,
    crossed_mean,
    unseen_share,
)
from harness.compare.gains import gains
from harness.compare.identity import check_data, check_identity
from harness.compare.keys import (
    SCHEMA_VERSION,
    Agreement,
    Arm,
    Comparison,
    Decision,
    Identified,
    Pair,
)
from harness.compare.learning import learn
from harness.compare.measures import measure
from harness.compare.one_way_intervals import correct_sides, sides_of
from harness.compare.plumbing import UNUSED_TOOLS, heed_unused_tools
from harness.compare.power import Spread
from harness.compare.sampled import sampled
from harness.compare.scores import paired_differences, scores, span_of
from harness.compare.selection import left_out, named_arm, other_names
from harness.compare.starts import over_starts, starts_of
from harness.compare.stated import source_of_margin, stated_late
from harness.compare.states import refuse_conflicts
from harness.compare.transfer import transfer
from harness.compare.usable import usable_runs
from harness.compare.views import views
from harness.errors import NothingToCompare, UserError

if TYPE_CHECKING:
    from harness.compare.selection import Selection
    from harness.runs.reading import Run

ALPHA = 0.05
POWER = 0.8
CEILING = 0.97
"""Final accuracy can hardly distinguish arms that all end above this value."""


def compare(
    selection: Selection,
    baseline: str | None = None,
    allow: Iterable[str] = (),
    margin: float | None = None,
) -> Comparison:
    """Compare every arm with the baseline, by the last checkpoint of every finished run.

    Args:
        baseline: Name of an arm, or of its agent; by default the study's, else the first arm.
        allow: Identity keys that may differ; `parity`; `unused_tools` for agents without tool
            calls.
        margin: Differences below it count as none, in units of the reward; by default the study's.
            Without one, nothing can be called equivalent.

    Raises:
        NotComparable: Runs differ in something that must be identical, or their task set changed.
        UserError: No run has finished, or the baseline does not exist or has no finished run.
    """
    allow = list(allow)
    refuse_conflicts(selection.conflicts, baseline=baseline, margin=margin)
    late = stated_late(selection.study, selection.runs, margin)
    margin_source = source_of_margin(selection.study, margin, late)
    margin = selection.study.get("margin") if margin is None else margin
    usable, remarks = usable_runs(selection.runs)
    span = span_of(usable)
    width = span[1] - span[0]
    if margin is not None and not 0 < margin < width:
        raise UserError(f"a margin lies between 0 and {width:g} (0.05 is 5 points), got {margin:g}")
    # Refuse before anything is computed: a number over runs that differ in more than their arm
    # would be read as an answer.
    check_data(usable)
    identity_keys = [name for name in allow if name not in ("parity", UNUSED_TOOLS)]
    exceptions = check_identity(usable, identity_keys, selection.varied)
    remarks += (
        selection.remarks + check_parity(usable, allow) + circumstances(usable) + busy(usable)
    )
    by_arm = _by_arm(usable)
    base = _baseline(baseline or selection.study.get("baseline"), by_arm, selection)
    agreement = agree(by_arm, base)
    pairs = _pairs(by_arm, base, margin, agreement)
    _decide(pairs)
    arms: list[Arm] = []
    figures_by_arm = {}
    for name, runs in by_arm.items():
        arm = arm_of(name, runs)
        arms.append(arm)
        figures_by_arm[name] = arm["per_seed"]
    exceptions += [*heed_unused_tools(pairs, arms, allowed=UNUSED_TOOLS in allow), *late]
    checkpoint = selection.study.get("checkpoint")
    learning = learn(by_arm, base, checkpoint, span)
    if checkpoint is not None and "checkpoint" not in learning["measures"]:
        remarks.append(
            f"Not every run was validated at step {checkpoint}, so nothing is compared there."
        )
    document: Comparison = {
        "schema_version": SCHEMA_VERSION,
        "name": selection.name,
        "question": selection.study.get("question", ""),
        "task_set": usable[0].record["identity"]["task_set"].get("name", ""),
        "kind": usable[0].record["kind"],
        "baseline": base,
        "margin": margin,
        "alpha": ALPHA,
        "min_seeds": MIN_SEEDS,
        "collapse": COLLAPSE * width,
        "power": POWER,
        "checkpoint_rule": "last",
        "checkpoint": checkpoint,
        "times_compare": times_compare(usable),
        "ceiling": _saturated(arms, span),
        "one_seed": all(len(runs) == 1 for runs in by_arm.values()),
        "arms": arms,
        "pairs": pairs,
        "learning": learning,
        "agreement": agreement,
        "by_role": held_by_role(figures_by_arm, base),
        "views": views(by_arm, base, width),
        "exceptions": exceptions,
        "remarks": remarks,
        "missing": selection.missing,
        "failed": left_out(selection.runs, usable),
        "identity": _identified(usable),
    }
    if margin_source is not None:
        document["margin_source"] = margin_source
    if any(run.graded for run in usable):
        document["graded"] = True
    if span != (0.0, 1.0):
        document["span"] = span
    if starts := starts_of(by_arm, base, width):
        document["starts"] = starts
    if split := gains(by_arm):
        document["gains"] = split
    accuracies = {arm["name"]: arm["accuracy_final"] for arm in arms}
    if used := transfer(by_arm, accuracies, width):
        document["transfer"] = used
    if several := sampled(by_arm, base, span):
        document["sampled"] = several
    return document


def _by_arm(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """Return runs by arm, each arm's in the order of their pairing numbers."""
    by_arm: dict[str, list[Run]] = {}
    for run in runs:
        by_arm.setdefault(run.arm, []).append(run)
    # Tables and means over seeds must not depend on the order in which runs were found on disk.
    for arm_runs in by_arm.values():
        arm_runs.sort(key=lambda run: run.pairing)
    return by_arm


def _saturated(arms: Sequence[Arm], span: tuple[float, float]) -> bool:
    """Return whether every arm ends so close to the highest reward that arms hardly differ."""
    low, high = span
    for arm in arms:
        share = (arm["accuracy_final"]["mean"] - low) / (high - low)
        if share <= CEILING:
            return False
    return True


def _identified(runs: Sequence[Run]) -> dict[str, Identified]:
    """Return the identity and the certificate of every run, by its id."""
    by_run: dict[str, Identified] = {}
    for run in runs:
        by_run[run.id] = {"identity": run.record["identity"], "parity": run.parity}
    return by_run


def _baseline(name: str | None, arms: Mapping[str, Sequence[Run]], selection: Selection) -> str:
    """Return the baseline arm: the named one, or the first arm if none is named."""
    if name is None:
        return next(iter(arms))
    # An arm without any run has no other names, but is known: the error names what it lacks.
    names: dict[str, set[str]] = {}
    for planned in selection.arms:
        names[planned] = set()
    arm = named_arm(name, names | other_names(selection.runs))
    if arm not in arms:
        others = ", ".join(map(repr, arms))
        reasons = [text for text in selection.missing if text.startswith(f"{arm} seed ")]
        why = f" ({reasons[0]})" if reasons else ""
        raise NothingToCompare(
            f"the baseline, {arm!r}, has no finished and validated run yet{why}. "
            f"Name another with --baseline: {others}"
        )
    return arm


def _pairs(
    by_arm: Mapping[str, Sequence[Run]],
    base: str,
    margin: float | None,
    agreement: Mapping[str, Agreement],
) -> list[Pair]:
    """Return every arm against the baseline, not yet corrected for their number."""
    pairs = []
    for name, runs in by_arm.items():
        if name == base:
            continue
        identical = name in agreement and agreement[name]["identical"]
        pairs.append(_pair(name, runs, base, by_arm[base], margin, len(by_arm) - 1, identical))
    return pairs


def _pair(
    name: str,
    runs: Sequence[Run],
    base: str,
    base_runs: Sequence[Run],
    margin: float | None,
    family: int,
    identical: bool,
) -> Pair:
    mine, theirs = scores(runs), scores(base_runs)
    rows, paired = paired_differences(mine, theirs)
    span = span_of([*runs, *base_runs])
    width = span[1] - span[0]
    by_start = over_starts(rows)
    difference = crossed_mean(by_start, width)
    if difference is None:
        raise NothingToCompare(
            f"{name!r} and {base!r} have no scored validation question in common"
        )
    both_runs = (*runs, *base_runs)
    graded = any(run.graded for run in both_runs)
    values = {*mine["value"].unique(), *theirs["value"].unique()}
    # McNemar's test counts right and wrong answers, so it needs rewards that are nothing else.
    binary = not graded and values <= {0.0, 1.0}
    learned = any(not measure(run)["no_signal"] for run in both_runs)
    # Equal answers of trainings that learned nothing are no evidence: the policy stayed the same.
    same = identical and learned and paired == "seed" and difference.se == difference.mean == 0
    far = margin or COLLAPSE * width
    collapsed = [value for value in difference.by_seed if abs(value) >= far]
    # Identical answers leave nothing to estimate for these seeds. What other seeds may do is in
    # `collapses`, not in the interval.
    shown = replace(difference, low=0.0, high=0.0) if same else difference
    p = difference.p_difference()
    p_equivalence = None if margin is None else difference.p_equivalence(margin)
    common_seeds = set(rows["seed"].unique()) if paired == "seed" else None
    pair: Pair = {
        "arm": name,
        "baseline": base,
        "paired_by": paired,
        "learned": learned,
        "identical": same,
        "difference": shown.data(),
        "difference_bounds": evidence.bounds(runs, base_runs, common_seeds),
        "p": p,
        "p_equivalence": p_equivalence,
        "detectable": difference.detectable(POWER, ALPHA / family),
        "one_seed": difference.seeds == 1,
        "collapses": {
            "seen": len(collapsed),
            "share": unseen_share(len(collapsed), difference.seeds),
            "interval": difference.with_collapses(),
            "seeds_needed": _seeds_needed(difference, margin, family, same),
        },
        "item": {
            "mcnemar": evidence.mcnemar(rows) if binary and paired == "seed" else [],
            "cluster_bootstrap": statistics.cluster_bootstrap(rows),
            "clusters": difference.clusters,
            "few_clusters": difference.clusters < statistics.FEW_CLUSTERS,
        },
        "training": evidence.training(runs, base_runs, rows) if difference.seeds > 1 else {},
        "p_holm": p,
        "p_equivalence_holm": p_equivalence,
        "verdict": "cannot tell",
    }
    if sides := sides_of(by_start, width):
        pair["sides"] = sides
    if by_start is not rows:
        pair["starts"] = difference.seeds
    return pair


def _seeds_needed(
    difference: Estimate, margin: float | None, family: int, identical: bool
) -> int | None:
    """Return the seeds for `POWER` of equivalence at no true difference, by measured variances."""
    if margin is None or (difference.seeds < 2 and not identical):
        return None
    if identical:
        return MIN_SEEDS
    spread = Spread.of(difference)
    return spread.seeds_for_equivalence(margin / difference.width, family, POWER, ALPHA)


def _decide(pairs: Sequence[Pair]) -> None:
    """Correct the p values of all pairs as one family and set their verdicts."""
    # With many arms some p value is small by chance. "Different" and "equivalent" are families of
    # their own, because a verdict claims only one of them.
    p_different: list[float] = []
    p_equivalent: list[float] = []
    for pair in pairs:
        p_different.append(pair["p"])
        # The margin holds for the whole comparison, so all pairs have this p value or none has.
        if pair["p_equivalence"] is not None:
            p_equivalent.append(pair["p_equivalence"])
    for pair, corrected in zip(pairs, statistics.holm(p_different), strict=True):
        pair["p_holm"] = corrected
    for pair, corrected in zip(pairs, statistics.holm(p_equivalent), strict=False):
        pair["p_equivalence_holm"] = corrected
    correct_sides(pairs)
    for pair in pairs:
        pair["verdict"] = verdict(
            pair["p_holm"],
            pair["p_equivalence_holm"],
            pair["difference"]["seeds"],
            identical=pair["identical"],
            learned=pair["learned"],
        )


def verdict(
    p: float,
    p_equivalence: float | None,
    seeds: int,
    *,
    identical: bool = False,
    learned: bool = True,
) -> Decision:
    """Return the verdict on a pair. A real difference inside the margin is equivalent.

    Args:
        p_equivalence: None without a margin: then nothing is equivalent.
        seeds: Compared trainings; fewer than `MIN_SEEDS` are never enough for `equivalent`.
        identical: Whether both trainings of every seed gave the same answers in every step. Then no
            test is needed: they are equivalent for these seeds, and the verdict states how many
            other seeds may differ. With too few seeds or without a margin, they are `identical`.
        learned: Whether there was anything to learn. Trainings that learned nothing are not alike.
    """
    # Equivalence comes first: with many seeds a tiny difference is significant, and still smaller
    # than the margin that was stated as meaningless.
    enough = seeds >= MIN_SEEDS and p_equivalence is not None
    if learned and enough and (identical or (p_equivalence or 0.0) < ALPHA):
        return "equivalent"
    if learned and identical:
        return "identical"
    return "different" if p < ALPHA else "cannot tell"

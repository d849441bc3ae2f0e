"""Seeds and questions that detect an effect, from the variances of existing runs."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Annotated, cast

import numpy as np
import polars as pl
from typing_extensions import TypedDict

from harness.compare.comparison import CEILING
from harness.compare.power import Variances
from harness.compare.scores import paired_differences, scores, span_of
from harness.compare.selection import named_arm, other_names, why_left_out
from harness.compare.states import refuse_conflicts
from harness.compare.usable import has_scores, usable_runs
from harness.compare.variances import codes
from harness.errors import UserError

if TYPE_CHECKING:
    from harness.compare.selection import Selection
    from harness.runs.reading import Run

MOST_SEEDS = 1000


class Plan(TypedDict):
    """The cost of detecting an effect with one validation set, for `harness power`."""

    clusters: Annotated[int, "groups of dependent questions in the validation set"]
    questions: Annotated[int, "questions in the validation set"]
    seeds: Annotated[int | None, "seeds per arm; None if no number is enough"]
    runs: Annotated[int | None, "runs of two arms"]
    machine_s: Annotated[
        float | None, "machine time in seconds, by the measured time of a run; None if unknown"
    ]


@dataclass(frozen=True, slots=True)
class Planned:
    """The cost of detecting an effect.

    Attributes:
        family: Arms that are compared with the baseline.
        rows: Required seeds, by validation set.
        now: The smallest difference that the existing runs detect.
        run_s: The median time of a run; None if none was measured.
        equivalence: Seeds that show equivalence with the given power, at no true difference; None
            without a margin, or if 200 are not enough.
        lowest: The mean reward of the run with the lowest final one.
        ceiling: Whether the possible gain is less than the effect, or the task set is saturated.
        span: Lowest and highest reward.
        remarks: Runs that are left out, and limits of the others, a sentence each.
    """

    variances: Variances
    family: int
    margin: float | None
    rows: list[Plan]
    now: float
    run_s: float | None
    equivalence: int | None
    lowest: float
    ceiling: bool
    graded: bool
    span: tuple[float, float]
    remarks: list[str]


def planned(
    selection: Selection,
    effect: float,
    power: float,
    alpha: float,
    arms: int | None = None,
    margin: float | None = None,
    baseline: str | None = None,
) -> Planned:
    """Return the cost of detecting an effect, from the finished runs of a selection.

    `margin` and `baseline` default to the study's own.

    Args:
        effect: In units of the reward.
        arms: Number of arms to compare with the baseline, by default all selected ones.

    Raises:
        UserError: No run has finished with a scored validation, a number is out of its range, or no
            variance is known.
    """
    # The runs that a comparison would count: a verdict is planned from what it will be made of.
    pilots, remarks = usable_runs(selection.runs)
    for run in selection.runs:
        if run.finished and not has_scores(run):
            remarks.append(f"{run.name} is left out: {why_left_out(run, pilots)}.")
    runs_by_arm: dict[str, list[Run]] = {}
    for run in pilots:
        runs_by_arm.setdefault(run.arm, []).append(run)
    family = max(len(runs_by_arm) - 1, 1) if arms is None else arms
    refuse_conflicts(selection.conflicts, baseline=baseline, margin=margin)
    margin = selection.study.get("margin") if margin is None else margin
    least, most = span = span_of(pilots)
    width = most - least
    if not 0 < effect < width:
        raise UserError(
            f"--effect is in points, between 0 and {100 * width:g}, got {100 * effect:g}"
        )
    if family < 1 or (margin is not None and not 0 < margin < width):
        raise UserError(
            f"--arms is 1 or more; a margin lies between 0 and {width:g} (0.05 is 5 points)"
        )
    estimated = variances(runs_by_arm, baseline or selection.study.get("baseline"))
    walls_s: list[float] = []
    mean_rewards: list[float] = []
    for run in pilots:
        result = run.record["result"]
        if result and result.get("wall_s"):
            walls_s.append(result["wall_s"])
        mean_rewards.append(cast(float, scores([run])["value"].mean()))
    # The median, since a run on a busy machine may have taken several times as long.
    run_s = statistics.median(walls_s) if walls_s else None
    strictest = alpha / family  # Holm's first step, which every arm must pass in the worst case
    lowest = min(mean_rewards)
    equivalence = None
    if margin is not None:
        # Shares of the scale, as the rules for collapses are stated in them.
        spread = estimated.spread(estimated.sizes, width)
        equivalence = spread.seeds_for_equivalence(margin / width, family, power, alpha)
    return Planned(
        variances=estimated,
        family=family,
        margin=margin,
        rows=plan(estimated, effect, power, strictest, run_s),
        now=estimated.detectable(estimated.seeds, estimated.sizes, power, strictest),
        run_s=run_s,
        equivalence=equivalence,
        lowest=lowest,
        ceiling=(lowest - least) / width > CEILING or most - lowest < effect,
        graded=any(run.graded for run in pilots),
        span=span,
        remarks=remarks,
    )


def variances(arms: dict[str, list[Run]], baseline: str | None = None) -> Variances:
    """Return variance components for clusters of any size, averaged over arms.

    With one arm of several seeds, differences between its own seeds are used instead: they show by
    how much two equal arms differ by chance.

    Raises:
        UserError: There are too few runs to estimate a variance, or the baseline does not exist.
    """
    base = next(iter(arms))
    if baseline is not None:
        base = named_arm(baseline, other_names(chain.from_iterable(arms.values())))
    compared = 0
    usable: list[pl.DataFrame] = []
    for name, runs in arms.items():
        if name == base:
            continue
        differences, _ = paired_differences(scores(runs), scores(arms[base]))
        compared += 1
        # One seed shows nothing of how much seeds differ.
        if differences["seed"].n_unique() > 1:
            usable.append(differences)
    source = f"{compared} arm(s) against {base}"
    around = not usable
    if around:
        usable, source = _within(arms), "differences between seeds of one arm"
    if not usable:
        raise UserError(
            "no variance between seeds is known: "
            "give runs of one arm with at least three seeds, or a study"
        )
    parts = np.mean([_components(table, around) for table in usable], axis=0)
    sizes = usable[0].group_by("cluster").agg(pl.n_unique("task_id")).sort("cluster")["task_id"]
    if not parts.any():
        raise UserError(
            "every difference is the same, so there is no variance to plan with: "
            "give runs that differ"
        )
    seed, cluster, question, cell, score = map(float, parts)
    seeds = usable[0]["seed"].n_unique()
    return Variances(seed, cluster, question, cell, score, tuple(sizes), seeds, source)


def needed(
    found: Variances, effect: float, power: float, alpha: float, sizes: Sequence[int]
) -> int | None:
    """Return the fewest seeds that detect an effect, or None if no number of seeds does."""
    low, high = 1, 2
    while found.detectable(high, sizes, power, alpha) > effect:
        if high == MOST_SEEDS:
            return None
        low, high = high, min(2 * high, MOST_SEEDS)
    while high - low > 1:
        middle = (low + high) // 2
        if found.detectable(middle, sizes, power, alpha) <= effect:
            high = middle
        else:
            low = middle
    return high


def plan(
    found: Variances, effect: float, power: float, alpha: float, run_s: float | None
) -> list[Plan]:
    """Return the required seeds for several validation sets, with machine time of two arms.

    Sets grow by more questions of the same clusters or, with several clusters to estimate their
    variance, by more clusters of the same sizes.
    """
    rows: list[Plan] = []
    for factor in (1, 2, 4):
        options = [[size * factor for size in found.sizes]]
        # More clusters need an estimate of how clusters differ, which one cluster does not give.
        if factor > 1 and len(found.sizes) > 1:
            options.append(list(found.sizes) * factor)
        for sizes in options:
            seeds = needed(found, effect, power, alpha, sizes)
            rows.append(
                {
                    "clusters": len(sizes),
                    "questions": sum(sizes),
                    "seeds": seeds,
                    "runs": None if seeds is None else 2 * seeds,
                    "machine_s": None if seeds is None or run_s is None else 2 * seeds * run_s,
                }
            )
    return rows


def _components(table: pl.DataFrame, around: bool = False) -> np.ndarray:
    """Return variances between seeds, clusters, questions, cells (seed and cluster) and scores.

    Sums of squares of every grouping are set to their expected values, and the equations solved.
    The method holds for clusters of any size and with missing scores. Negative components are left
    out, the most negative first, and the others fitted again: setting them to 0 would make the sum
    too large. With one cluster, clusters and questions cannot be distinguished from the mean.

    Source: Henderson 1953, Biometrics 9, 226-252, method 1; Searle, Casella and McCulloch 1992,
    Variance Components, chapter 5; Thompson 1962, Ann. Math. Stat. 33, 273-289, for leaving out.

    Args:
        table: Columns `seed`, `cluster`, `task_id`, `value`; one table of differences.
        around: The differences are those of `_neighbours`. They sum to 0, so their mean is known
            and costs no degree of freedom: the variance of n seeds comes out n / (n - 1) times too
            large, and is corrected.
    """
    values = table["value"].to_numpy()
    seed, cluster = codes(table["seed"]), codes(table["cluster"])
    question = codes(table["task_id"])
    several = cluster.max() > 0
    group = {
        "mean": np.zeros(len(values), int),
        "seed": seed,
        "cluster": cluster,
        "question": question,
        "cell": seed * (cluster.max() + 1) + cluster,
        "score": np.arange(len(values)),
    }
    names = ["mean", "seed", "question", "score"]
    if several:
        names = ["mean", "seed", "cluster", "question", "cell", "score"]
    counts = {name: np.bincount(group[name]) for name in names}

    def expected(by: str, component: str) -> float:
        """Return a variance's coefficient in the sum over groups of (sum of values)^2 / size."""
        width = len(counts[component])
        pairs, sizes = np.unique(group[by] * width + group[component], return_counts=True)
        return float((sizes**2 / counts[by][pairs // width]).sum())

    solved: dict[str, float] = {}
    while not solved or min(solved[name] for name in names[1:]) < 0:
        if solved:
            most_negative = min(names[1:], key=lambda name: solved[name])
            names.remove(most_negative)
        squares = []
        for name in names:
            sums = np.bincount(group[name], values)
            squares.append((sums**2 / np.maximum(counts[name], 1)).sum())
        rows = []
        for by in names:
            rows.append([expected(by, component) for component in names])
        solution = np.linalg.lstsq(np.array(rows), np.array(squares), rcond=None)[0]
        solved = dict(zip(names, solution.tolist(), strict=True))
        if len(names) == 2:
            break
    if not several:
        solved["question"] = 0.0
    part = 1 - 1 / len(counts["seed"]) if around else 1.0
    components: list[float] = []
    for name in ("seed", "cluster", "question", "cell", "score"):
        # A component that was left out has no solution, and the last one may still be negative.
        components.append(part * max(0.0, float(solved.get(name, 0.0))))
    return np.array(components)


def _within(arms: dict[str, list[Run]]) -> list[pl.DataFrame]:
    """Return differences of neighbouring seeds within the arms that have three or more."""
    tables = []
    for runs in arms.values():
        if len(runs) < 3:
            continue
        pairs = []
        for place, (first, second) in enumerate(_neighbours(runs)):
            # Both runs get the same seed, so that their scores are paired.
            first_scores = scores([first]).with_columns(seed=place)
            second_scores = scores([second]).with_columns(seed=place)
            pairs.append(paired_differences(first_scores, second_scores)[0])
        tables.append(pl.concat(pairs))
    return tables


def _neighbours(runs: Sequence[Run]) -> list[tuple[Run, Run]]:
    """Return cyclic pairs of neighbouring runs: all count equally and differences sum to 0."""
    return list(zip(runs, [*runs[1:], *runs[:1]], strict=True))

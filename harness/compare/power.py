"""How many seeds and questions an effect of a given size needs, from the variances of runs that exist."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness.compare.estimates import codes, detectable_effect, root, share_df, square_weights, t_quantile, ways_of
from harness.compare.runs import named_arm, other_names
from harness.compare.scores import paired_differences, scores
from harness.errors import UserError

if TYPE_CHECKING:
    import numpy as np
    import polars as pl

    from harness.compare.keys import Plan
    from harness.compare.runs import Run

MOST_SEEDS = 1000
DRAWN = 2_000_000
"""Means of a cluster and seed that are drawn for one answer."""


@dataclass(frozen=True, slots=True)
class Variances:
    """Variance components of paired differences.

    Attributes:
        seed: Between seeds: what another training changes.
        cluster: Between clusters: what other clusters change.
        question: Between questions of a cluster, alike for every seed; 0 with one cluster, where the test leaves it
            out.
        cell: Between seeds of one cluster, beyond what both do alone.
        score: Between single scores.
        sizes: Questions of every cluster.
        seeds: How many the estimate rests on.
        source: Whose differences were looked at.
    """

    seed: float
    cluster: float
    question: float
    cell: float
    score: float
    sizes: tuple[int, ...]
    seeds: int
    source: str

    @property
    def questions(self) -> int:
        """Of all clusters together."""
        return sum(self.sizes)

    def detectable(self, seeds: int, sizes: Sequence[int], power: float, alpha: float) -> float:
        """The smallest true difference that the verdict's own test finds with this power; needs two seeds.

        The test estimates its variance, so trainings are drawn from these components (normal) and tested as there.

        Args:
            sizes: Questions of every cluster.
        """
        import numpy as np
        from scipy.special import ndtr

        share = np.array(sizes, float) / sum(sizes)
        spread = float((share**2).sum())
        both = self.cell * spread / seeds + self.score / (seeds * sum(sizes))
        by_seed = self.seed / seeds + both
        if len(sizes) == 1:
            return detectable_effect(math.sqrt(by_seed), seeds - 1.0, power, alpha)
        by_cluster = self.cluster * spread + self.question / sum(sizes) + both
        error = math.sqrt(by_seed + by_cluster - both)
        draws = int(np.clip(DRAWN // (seeds * len(sizes)), 50, 2000))
        normal, size = np.random.default_rng(0).normal, np.array(sizes, float)
        means = normal(0, math.sqrt(self.seed), (draws, seeds, 1)) + normal(
            0, np.sqrt(self.cluster + self.question / size), (draws, 1, len(size))
        )
        means += normal(0, np.sqrt(self.cell + self.score / size), (draws, seeds, len(size)))
        parts = (means - (means * share).sum(2).mean(1)[:, None, None]) * share / seeds
        by_seeds = (parts.sum(2) ** 2).sum(1) * seeds / (seeds - 1)
        by_clusters = (parts.sum(1) ** 2 * square_weights(share)).sum(1)
        by_both = (parts**2 * square_weights(share, seeds)).sum((1, 2))
        ways = ways_of(by_seeds, by_clusters, by_both, seeds - 1.0, share_df(share))
        squares = [sum(part * t_quantile(1 - alpha / 2, df) ** 2 for part, df in way) for way in ways]
        needed = np.sqrt(np.maximum(*squares)) / error

        def lacking(effect: float) -> float:
            return float((ndtr(effect - needed) + ndtr(-needed - effect)).mean()) - power

        return error * root(lacking, 0.0, float(needed.max()) + 10.0)


def variances(arms: dict[str, list[Run]], baseline: str | None = None) -> Variances:
    """Variance components of clusters of any size, averaged over all arms against the baseline.

    With one arm of several seeds, differences between its own seeds stand in: what two arms differ by when
    nothing but chance separates them.

    Raises:
        UserError: There are too few runs to see any variance, or there is no such baseline.
    """
    import numpy as np
    import polars as pl

    names = list(arms)
    base = (
        names[0]
        if baseline is None
        else named_arm(baseline, other_names(run for runs in arms.values() for run in runs))
    )
    tables = {
        name: paired_differences(scores(runs), scores(arms[base]))[0] for name, runs in arms.items() if name != base
    }
    source = f"{len(tables)} arm(s) against {base}"
    usable = [table for table in tables.values() if table["seed"].n_unique() > 1]
    around = not usable
    if around:
        usable, source = _within(arms), "differences between seeds of one arm"
    if not usable:
        raise UserError(
            "no variance between seeds is known: give runs of one arm with at least three seeds, or a study"
        )
    parts = np.mean([_components(table, around) for table in usable], axis=0)
    sizes = usable[0].group_by("cluster").agg(pl.n_unique("task_id")).sort("cluster")["task_id"]
    if not parts.any():
        raise UserError("every difference is the same, so there is no variance to plan with: give runs that differ")
    seed, cluster, question, cell, score = map(float, parts)
    seeds = usable[0]["seed"].n_unique()
    return Variances(seed, cluster, question, cell, score, tuple(sizes), seeds, source)


def needed(found: Variances, effect: float, power: float, alpha: float, sizes: Sequence[int]) -> int | None:
    """The fewest seeds that find an effect; None where no number of seeds does."""
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


def plan(found: Variances, effect: float, power: float, alpha: float, run_s: float | None) -> list[Plan]:
    """Seeds needed for several validation sets, with measured machine time of two arms.

    Sets grow by as many more questions of the same clusters, or by as many more clusters of the same sizes, if there
    are several to know by what clusters vary.
    """
    rows: list[Plan] = []
    for factor in (1, 2, 4):
        more_questions, more_clusters = [size * factor for size in found.sizes], list(found.sizes) * factor
        for sizes in (more_questions, more_clusters) if factor > 1 and len(found.sizes) > 1 else (more_questions,):
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
    """Variances between seeds, clusters, questions, cells (seed and cluster) and scores of one table of differences.

    Sums of squares of every grouping are set to what they are expected to be, and the equations solved. It holds for
    clusters of any size, and where scores are missing. A component that comes out negative is left out, the most
    negative first, and the others are fitted anew: cut at 0 it would make their sum too large. With one cluster
    neither clusters nor questions are told apart from the mean.

    Source: Henderson 1953, Biometrics 9, 226-252, method 1; Searle, Casella and McCulloch 1992, Variance Components,
    chapter 5; Thompson 1962, Ann. Math. Stat. 33, 273-289, for leaving out.

    Args:
        table: Columns `seed`, `cluster`, `task_id`, `value`.
        around: The differences are those of `_neighbours`. They sum to 0, so their mean is known and costs no degree
            of freedom: what n seeds differ by comes out n / (n - 1) times too large, and is brought back.
    """
    import numpy as np

    values = table["value"].to_numpy()
    seed, cluster, question = (codes(table[name]) for name in ("seed", "cluster", "task_id"))
    several = cluster.max() > 0
    group = {
        "mean": np.zeros(len(values), int),
        "seed": seed,
        "cluster": cluster,
        "question": question,
        "cell": seed * (cluster.max() + 1) + cluster,
        "score": np.arange(len(values)),
    }
    names = ["mean", "seed", *(["cluster", "question", "cell"] if several else ["question"]), "score"]
    counts = {name: np.bincount(group[name]) for name in names}

    def expected(by: str, component: str) -> float:
        """How often a component's variance is in the sum over groups of (sum of values)^2 / size."""
        width = len(counts[component])
        pairs, sizes = np.unique(group[by] * width + group[component], return_counts=True)
        return float((sizes**2 / counts[by][pairs // width]).sum())

    solved: dict[str, float] = {}
    while not solved or min(solved[name] for name in names[1:]) < 0:
        names = [name for name in names if not solved or name != min(names[1:], key=lambda one: solved[one])]
        squares = [(np.bincount(group[name], values) ** 2 / np.maximum(counts[name], 1)).sum() for name in names]
        matrix = np.array([[expected(by, component) for component in names] for by in names])
        solved = dict(zip(names, np.linalg.lstsq(matrix, np.array(squares), rcond=None)[0].tolist(), strict=True))
        if len(names) == 2:
            break
    if not several:
        solved["question"] = 0.0
    part = 1 - 1 / len(counts["seed"]) if around else 1.0
    order = ("seed", "cluster", "question", "cell", "score")
    return np.array([part * max(0.0, float(solved.get(name, 0.0))) for name in order])


def _within(arms: dict[str, list[Run]]) -> list[pl.DataFrame]:
    """Differences of neighbouring seeds within the arms that have three or more."""
    import polars as pl

    found = []
    for runs in arms.values():
        if len(runs) < 3:
            continue
        pairs = []
        for place, (one, other) in enumerate(_neighbours(runs)):
            mine, theirs = (scores([run]).with_columns(seed=place) for run in (one, other))
            pairs.append(paired_differences(mine, theirs)[0])
        found.append(pl.concat(pairs))
    return found


def _neighbours(runs: Sequence[Run]) -> list[tuple[Run, Run]]:
    """Every run with the next one, around: every run counts alike, and the differences sum to 0."""
    return [(run, runs[(index + 1) % len(runs)]) for index, run in enumerate(runs)]

"""How many seeds and questions an effect of a given size needs, from the variances of runs that exist."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from harness.compare.estimates import crossed_df, detectable_effect
from harness.compare.scores import paired_differences, scores
from harness.errors import UserError

if TYPE_CHECKING:
    import pandas as pd

    from harness.compare.runs import Run

MOST_SEEDS = 1000


@dataclass(frozen=True, slots=True)
class Variances:
    """Variance components of paired differences.

    Attributes:
        seed: Between seeds: what another training changes.
        database: Between databases: what other databases change.
        question: Between scores of one seed and database; with one database, what seeds do not share of it.
        seeds, databases, questions: How many of each the estimate rests on.
        source: Whose differences were looked at.
    """

    seed: float
    database: float
    question: float
    seeds: int
    databases: int
    questions: int
    source: str

    def detectable(self, seeds: int, databases: int, questions: int, power: float, alpha: float) -> float:
        """The smallest true difference that the verdict's own test finds with this power; needs two seeds."""
        chance = self.question / (seeds * max(questions, 1))
        by_seed, by_database = self.seed / seeds + chance, self.database / databases + chance
        variance = by_seed + by_database - chance
        df = crossed_df(variance, by_seed, by_database, chance, seeds, databases) if databases > 1 else seeds - 1
        return detectable_effect(math.sqrt(variance), df, power, alpha)


def variances(arms: dict[str, list[Run]], baseline: str | None = None) -> Variances:
    """Variance components by the method of moments, averaged over all arms against the baseline.

    With one arm of several seeds, differences between its own seeds stand in: what two arms differ by when
    nothing but chance separates them.

    Source: Searle, Casella and McCulloch 1992, Variance Components, chapter 4 (two-way crossed, random).

    Raises:
        UserError: There are too few runs to see any variance.
    """
    names = list(arms)
    base = baseline if baseline in arms else names[0]
    tables = {
        name: paired_differences(scores(runs), scores(arms[base]))[0] for name, runs in arms.items() if name != base
    }
    source = f"{len(tables)} arm(s) against {base}"
    usable = [table for table in tables.values() if table["seed"].nunique() > 1]
    around = not usable
    if around:
        usable, source = _within(arms), "differences between seeds of one arm"
    if not usable:
        raise UserError(
            "no variance between seeds is known: give runs of one arm with at least three seeds, or a study"
        )
    parts = [_components(table, around) for table in usable]
    first = usable[0]
    return Variances(
        seed=sum(part[0] for part in parts) / len(parts),
        database=sum(part[1] for part in parts) / len(parts),
        question=sum(part[2] for part in parts) / len(parts),
        seeds=int(first["seed"].nunique()),
        databases=int(first["db_id"].nunique()),
        questions=int(first["task_id"].nunique()),
        source=source,
    )


def needed(found: Variances, effect: float, power: float, alpha: float, databases: int, questions: int) -> int | None:
    """The fewest seeds that find an effect; None where no number of seeds does."""
    if found.detectable(MOST_SEEDS, databases, questions, power, alpha) > effect:
        return None
    low, high = 2, MOST_SEEDS
    while low < high:
        middle = (low + high) // 2
        if found.detectable(middle, databases, questions, power, alpha) <= effect:
            high = middle
        else:
            low = middle + 1
    return low


def plan(found: Variances, effect: float, power: float, alpha: float, run_s: float | None) -> list[dict[str, Any]]:
    """Seeds needed for several validation sets, with measured machine time of two arms."""
    rows = []
    for factor in (1, 2, 4):
        for spread in (1, factor) if factor > 1 else (1,):
            databases, questions = found.databases * spread, found.questions * factor
            seeds = needed(found, effect, power, alpha, databases, questions)
            rows.append(
                {
                    "databases": databases,
                    "questions": questions,
                    "seeds": seeds,
                    "runs": None if seeds is None else 2 * seeds,
                    "machine_s": None if seeds is None or run_s is None else 2 * seeds * run_s,
                }
            )
    return rows


def _components(table: pd.DataFrame, around: bool = False) -> tuple[float, float, float]:
    """Variances between seeds, databases and questions of one table of differences.

    With one database its questions stand in for databases: only so is the noise of questions told from seeds.

    Args:
        table: Columns `seed`, `db_id`, `task_id`, `value`.
        around: The differences are those of `_neighbours`. They sum to 0, so their mean is known and costs no degree
            of freedom: squares are divided by n. By n - 1 all between seeds would be n / (n - 1) times too large.
    """
    several = table["db_id"].nunique() > 1
    cells = table.groupby(["seed", "db_id" if several else "task_id"])["value"]
    means = cells.mean().unstack()
    counts = cells.count()
    within = cells.var(ddof=1)
    question = float((within.fillna(0) * (counts - 1)).sum() / max(float((counts - 1).sum()), 1.0))
    rows, columns = means.shape
    free = rows if around else rows - 1
    residual = means.sub(means.mean(axis=1), axis=0).sub(means.mean(axis=0), axis=1) + means.stack().mean()
    unscored = int(means.isna().to_numpy().sum())
    crossed = float((residual**2).sum().sum()) / max(free * (columns - 1) - unscored, 1)
    seed = max(0.0, float(means.mean(axis=1).var(ddof=rows - free)) - crossed / columns)
    database = max(0.0, float(means.mean(axis=0).var(ddof=1)) - crossed / rows) if several else 0.0
    # What seeds and databases do together beyond questions counts as more variance between questions.
    per_cell = float(counts.mean())
    return seed, database, max(question, crossed * per_cell)


def _within(arms: dict[str, list[Run]]) -> list[pd.DataFrame]:
    """Differences of neighbouring seeds within the arms that have three or more."""
    import pandas as pd

    found = []
    for runs in arms.values():
        if len(runs) < 3:
            continue
        pairs = []
        for place, (one, other) in enumerate(_neighbours(runs)):
            mine, theirs = scores([one]).assign(seed=place), scores([other]).assign(seed=place)
            pairs.append(paired_differences(mine, theirs)[0])
        found.append(pd.concat(pairs, ignore_index=True))
    return found


def _neighbours(runs: Sequence[Run]) -> list[tuple[Run, Run]]:
    """Every run with the next one, around: every run counts alike, and the differences sum to 0."""
    return [(run, runs[(index + 1) % len(runs)]) for index, run in enumerate(runs)]

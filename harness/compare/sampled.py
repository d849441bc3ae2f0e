"""Measures from several samples per task: the best of k, the worst of k, and the majority answer.

For right-or-wrong rewards the best of k is pass@k and the worst of k is pass^k: the probability
that at least one of k samples is right, and that all of them are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from math import comb
from typing import TYPE_CHECKING, cast

from harness.compare.estimates import accuracy
from harness.compare.learning import held_against
from harness.util.formatting import mean

if TYPE_CHECKING:
    import polars as pl

    from harness.compare.keys import Sampled
    from harness.compare.runs import Run
    from harness.runs.schema import Samples

COLUMNS = ("seed", "cluster", "task_id", "session", "reward", "meaning")


def best_of(values: Sequence[float], k: int) -> float:
    """Return the expected maximum of k values, drawn without replacement, or of all if fewer.

    Source: Chen et al. 2021, arXiv:2107.03374, section 2.1: unbiased for k new samples.
    """
    ordered, k = sorted(values), min(k, len(values))
    return sum(comb(index, k - 1) * value for index, value in enumerate(ordered)) / comb(
        len(ordered), k
    )


def worst_of(values: Sequence[float], k: int) -> float:
    """Return the expected minimum of k values, drawn without replacement, or of all if fewer."""
    return -best_of([-value for value in values], k)


def agreed(samples: Sequence[tuple[str | None, float]]) -> float:
    """Return the value of the answer with the most samples, at a tie of the earliest.

    Source: Wang et al. 2023, ICLR, "Self-consistency improves chain of thought reasoning".

    Args:
        samples: Meaning and value in order; a sample without meaning has no vote. Without votes the
            first one counts.
    """
    votes = Counter(meaning for meaning, _ in samples if meaning is not None)
    most = max(votes.values(), default=0)
    return next(
        value
        for meaning, value in samples
        if not votes or (meaning is not None and votes[meaning] == most)
    )


def measures(samples: int) -> list[str]:
    """Return the names of measures for so many samples; k is 1, 2, 4 and so on, and all."""
    several = [
        *(2**power for power in range(1, samples.bit_length()) if 2**power < samples),
        samples,
    ]
    return ["best_1", *(f"best_{k}" for k in several), *(f"worst_{k}" for k in several), "agreed"]


def title(measure: str, graded: bool) -> str:
    """Return the title of a measure."""
    kind, _, k = measure.partition("_")
    if measure == "agreed":
        return "self-consistency"
    if measure == "best_1":
        return "mean reward" if graded else "pass@1"
    names = (
        {"best": "best of ", "worst": "worst of "}
        if graded
        else {"best": "pass@", "worst": "pass^"}
    )
    return f"{names[kind]}{k}"


def lines(found: Samples, graded: bool) -> list[str]:
    """Return a summary in words, one line per measure."""
    short = f", {found['short']} of them with fewer scored ones" if found["short"] else ""
    oracle = f"best_{found['samples']}"
    return [
        f"{found['samples']} samples of each of {found['tasks']} tasks{short}; 95 % intervals",
        *(
            f"  {title(name, graded) + (', oracle' if name == oracle else ''):20} "
            f"{mean(one['mean'], graded):>8}  "
            f"{mean(one['interval_95'][0], graded)} to {mean(one['interval_95'][1], graded)}"
            + _left_out(one.get("left_out", 0))
            for name, one in found["measures"].items()
        ),
    ]


def _left_out(tasks: int) -> str:
    if not tasks:
        return ""
    return f"; {tasks} {'task' if tasks == 1 else 'tasks'} with fewer scored samples left out"


def by_task(rows: pl.DataFrame, samples: int) -> pl.DataFrame:
    """Return one row per seed and task with a scored sample: their number and every measure.

    The best and the worst of k are null where fewer than k samples are scored.

    Args:
        rows: Episodes with `COLUMNS`; those without a reward are ignored.
    """
    import polars as pl

    keys, found = ["seed", "cluster", "task_id"], []
    groups = (
        rows.drop_nulls("reward")
        .sort("session", maintain_order=True)
        .group_by(keys, maintain_order=True)
    )
    for *key, rewards, meanings in (
        groups.agg(pl.col("reward").cast(float), "meaning").sort(keys).rows()
    ):
        row = dict(zip(keys, key, strict=True)) | {"scored": len(rewards)}
        for name in measures(samples):
            row[name] = _measured(name, rewards, meanings)
        found.append(row)
    return pl.DataFrame(
        found, dict.fromkeys(keys) | {"scored": int} | dict.fromkeys(measures(samples), float)
    )


def _measured(name: str, rewards: Sequence[float], meanings: Sequence[str | None]) -> float | None:
    """Return one measure of a task's scored samples; None if it needs more samples."""
    if name == "agreed":
        return agreed(list(zip(meanings, rewards, strict=True)))
    kind, _, k = name.partition("_")
    if len(rewards) < int(k):
        return None  # the best or worst of fewer says another thing
    take = best_of if kind == "best" else worst_of
    return take(rewards, int(k))


def _taken(table: pl.DataFrame, name: str) -> pl.DataFrame:
    """Return the rows of `by_task` that have a measure, as `value`."""
    return table.with_columns(value=name).drop_nulls("value")


def summary(rows: pl.DataFrame, samples: int, span: tuple[float, float]) -> Samples:
    """Return every measure of one evaluation, with the interval of its accuracy.

    Args:
        span: Lowest and highest reward.
    """
    table = by_task(rows, samples)
    found = {name: accuracy(_taken(table, name), span) for name in measures(samples)}
    return {
        "samples": samples,
        "tasks": len(table),
        "short": cast(int, (table["scored"] < samples).sum()),
        "measures": {
            name: {
                "mean": one.mean,
                "interval_95": [round(one.low, 4), round(one.high, 4)],
                "left_out": table[name].null_count(),
            }
            for name, one in found.items()
            if one is not None
        },
    }


def sampled(
    arms: Mapping[str, Sequence[Run]], baseline: str, span: tuple[float, float]
) -> Sampled | None:
    """Return every measure per arm and its difference to the baseline, by task.

    None unless all were sampled.
    """
    samples = min(run.samples for runs in arms.values() for run in runs)
    if samples == 1:
        return None
    tables = {name: by_task(_episodes(runs), samples) for name, runs in arms.items()}
    taken = {
        name: {arm: _taken(table, name) for arm, table in tables.items()}
        for name in measures(samples)
        if name != "best_1"  # the mean, which is compared on its own
    }
    return {
        "samples": samples,
        "measures": list(taken),
        "short": {
            arm: cast(int, (table["scored"] < samples).sum()) for arm, table in tables.items()
        },
        "left_out": {
            arm: {name: table[name].null_count() for name in taken} for arm, table in tables.items()
        },
        "arms": held_against(taken, baseline, span),
    }


def _episodes(runs: Sequence[Run]) -> pl.DataFrame:
    import polars as pl

    numbered = [
        run.validation().with_columns(seed=pl.lit(run.pairing, pl.Int64)).select(COLUMNS)
        for run in runs
    ]
    return pl.concat(numbered)

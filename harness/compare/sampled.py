"""Measures from several samples per task: the best of k, the worst of k, and the majority answer.

For right-or-wrong rewards the best of k is pass@k and the worst of k is pass^k: the probability
that at least one of k samples is right, and that all of them are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import chain
from math import comb
from typing import TYPE_CHECKING, cast

from harness.compare.estimates import accuracy
from harness.compare.learning import held_against
from harness.util.formatting import mean

if TYPE_CHECKING:
    import polars as pl

    from harness.compare.keys import Sampled
    from harness.runs.reading import Run
    from harness.runs.schema import Measured, Samples

COLUMNS = ("seed", "cluster", "task_id", "session", "reward", "meaning")


def best_of(values: Sequence[float], k: int) -> float:
    """Return the expected maximum of k values, drawn without replacement, or of all if fewer.

    Source: Chen et al. 2021, arXiv:2107.03374, section 2.1: unbiased for k new samples.
    """
    ordered, k = sorted(values), min(k, len(values))
    # A value is the maximum of so many subsets of k as there are choices of the other k - 1 below
    # it. Averaging over all subsets has less variance than drawing some.
    weighted = [comb(below, k - 1) * value for below, value in enumerate(ordered)]
    return sum(weighted) / comb(len(ordered), k)


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
    votes = Counter[str]()
    # Samples of one meaning may differ in value; its first one counts.
    first_values: dict[str, float] = {}
    for meaning, value in samples:
        if meaning is not None:
            votes[meaning] += 1
            first_values.setdefault(meaning, value)
    if not votes:
        return samples[0][1]
    # The earliest of equally frequent answers, not the best of them: choosing by value would read
    # the gold.
    winner, _ = votes.most_common(1)[0]
    return first_values[winner]


def measures(samples: int) -> list[str]:
    """Return the names of measures for so many samples; k is 1, 2, 4 and so on, and all."""
    several = []
    k = 2
    while k < samples:
        several.append(k)
        k *= 2
    several.append(samples)
    best = []
    worst = []
    for k in several:
        best.append(f"best_{k}")
        worst.append(f"worst_{k}")
    # The best and the worst of one sample are the same, so only one of them has a row.
    return ["best_1", *best, *worst, "agreed"]


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


def lines(samples: Samples, graded: bool) -> list[str]:
    """Return a summary in words, one line per measure."""
    short = f", {samples['short']} of them with fewer scored ones" if samples["short"] else ""
    head = f"{samples['samples']} samples of each of {samples['tasks']} tasks{short}"
    summary_lines = [f"{head}; 95 % intervals"]
    for name, figures in samples["measures"].items():
        heading = title(name, graded)
        # The best of all samples needs the gold to be chosen; no agent can reach it.
        if name == f"best_{samples['samples']}":
            heading += ", oracle"
        low, high = figures["interval_95"]
        summary_lines.append(
            f"  {heading:20} {mean(figures['mean'], graded):>8}  "
            f"{mean(low, graded)} to {mean(high, graded)}"
            f"{_left_out(figures.get('left_out', 0))}"
        )
    return summary_lines


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

    keys, names = ["seed", "cluster", "task_id"], measures(samples)
    # In the order of their sessions: a majority's tie goes to the earliest sample.
    ordered = rows.drop_nulls("reward").sort("session", maintain_order=True)
    groups = ordered.group_by(keys, maintain_order=True)
    by_key = groups.agg(pl.col("reward").cast(float), "meaning").sort(keys)
    table_rows = []
    for *key, rewards, meanings in by_key.rows():
        row = dict(zip(keys, key, strict=True)) | {"scored": len(rewards)}
        for name in names:
            row[name] = _measured(name, rewards, meanings)
        table_rows.append(row)
    schema = dict.fromkeys(keys) | {"scored": int} | dict.fromkeys(names, float)
    return pl.DataFrame(table_rows, schema)


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
    figures: dict[str, Measured] = {}
    for name in measures(samples):
        estimate = accuracy(_taken(table, name), span)
        if estimate is not None:
            figures[name] = {
                "mean": estimate.mean,
                "interval_95": [round(estimate.low, 4), round(estimate.high, 4)],
                "left_out": table[name].null_count(),
            }
    return {
        "samples": samples,
        "tasks": len(table),
        "short": _short(table, samples),
        "measures": figures,
    }


def _short(table: pl.DataFrame, samples: int) -> int:
    """Return the number of tasks with fewer scored samples than were drawn."""
    return cast(int, (table["scored"] < samples).sum())


def sampled(
    arms: Mapping[str, Sequence[Run]], baseline: str, span: tuple[float, float]
) -> Sampled | None:
    """Return every measure per arm and its difference to the baseline, by task.

    None unless all were sampled.
    """
    # With the smallest number of samples of any run: the best of more would favour the other arms.
    samples = min(run.samples for run in chain.from_iterable(arms.values()))
    if samples == 1:
        return None
    # `best_1` is the mean reward, which the comparison tests as accuracy: once more here, it would
    # make the correction over this family stricter for nothing.
    names = measures(samples)[1:]
    taken: dict[str, dict[str, pl.DataFrame]] = {}
    short: dict[str, int] = {}
    left_out: dict[str, dict[str, int]] = {}
    for arm, runs in arms.items():
        table = by_task(_episodes(runs), samples)
        short[arm] = _short(table, samples)
        left_out[arm] = {}
        for name in names:
            taken.setdefault(name, {})[arm] = _taken(table, name)
            left_out[arm][name] = table[name].null_count()
    return {
        "samples": samples,
        "measures": list(taken),
        "short": short,
        "left_out": left_out,
        "arms": held_against(taken, baseline, span),
    }


def _episodes(runs: Sequence[Run]) -> pl.DataFrame:
    import polars as pl

    numbered = []
    for run in runs:
        seed = pl.lit(run.pairing, pl.Int64)
        numbered.append(run.validation().with_columns(seed=seed).select(COLUMNS))
    return pl.concat(numbered)

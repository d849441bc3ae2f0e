"""The gain of a training, split into format and skill.

A policy may gain because fewer of its answers fail, which is format, or because more of the others
are right, which is skill. An answer fails if the evaluator cannot execute it, or if the attempt
ended without one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from harness.compare.estimates import accuracy, crossed_mean
from harness.compare.measures import answer_fails

if TYPE_CHECKING:
    import polars as pl

    from harness.compare.estimates import Estimate
    from harness.compare.keys import EstimateData, Gain
    from harness.runs.reading import Run

QUESTION = ("seed", "cluster", "task_id")


def gains(arms: Mapping[str, Sequence[Run]]) -> dict[str, Gain]:
    """Return the gain of every arm's trainings between their first and last validation.

    Returns:
        Nothing for evaluations, for graded rewards, without a validation before training, and where
        no answer fails.
    """
    made: dict[str, Gain] = {}
    any_fails = False
    for name, runs in arms.items():
        for run in runs:
            if not run.trained or run.graded or min(run.val_curve(), default=1) != 0:
                return {}
        gain = gain_of(runs)
        if gain is None:
            return {}
        made[name] = gain
        any_fails = any_fails or bool(gain["fails_initial"]["mean"] or gain["fails_final"]["mean"])
    return made if any_fails else {}


def gain_of(runs: Sequence[Run]) -> Gain | None:
    """Return the gain of one arm, or None without a question that is scored in both validations."""
    import polars as pl

    before = pl.concat([_answers(run, 0) for run in runs])
    after = pl.concat([_answers(run) for run in runs])
    both = before.join(after, on=QUESTION, suffix="_final")
    if both.is_empty():
        return None
    fails = _mean(both["fails"]), _mean(both["fails_final"])
    right = _mean(both["right"]), _mean(both["right_final"])
    shares: list[float] = []
    for failing, correct in zip(fails, right, strict=True):
        if failing < 1:
            shares.append(correct / (1 - failing))
    # At the mean of both shares, format and skill add up to the gain, and neither comes first.
    worth = sum(shares) / len(shares) if shares else 0.0
    total = pl.col("right_final") - pl.col("right")
    by_format = (pl.col("fails") - pl.col("fails_final")) * worth
    return {
        "fails_initial": _data(accuracy(_values(both, pl.col("fails")))),
        "fails_final": _data(accuracy(_values(both, pl.col("fails_final")))),
        "right_initial": _share(right[0], fails[0]),
        "right_final": _share(right[1], fails[1]),
        "gain": _data(crossed_mean(_values(both, total))),
        "by_format": _data(crossed_mean(_values(both, by_format))),
        "by_skill": _data(crossed_mean(_values(both, total - by_format))),
    }


def _answers(run: Run, step: int | None = None) -> pl.DataFrame:
    """Return scored answers of a validation: seed, cluster, task_id, right and fails (means)."""
    import polars as pl

    rows = run.validation(step).drop_nulls("reward")
    rows = rows.select("cluster", "task_id", right="reward", fails=answer_fails(rows).cast(float))
    means = rows.group_by("cluster", "task_id").agg(pl.mean("right"), pl.mean("fails"))
    return means.sort("cluster", "task_id").select(
        pl.lit(run.pairing, pl.Int64).alias("seed"), pl.all()
    )


def _values(rows: pl.DataFrame, value: pl.Expr) -> pl.DataFrame:
    return rows.select(*QUESTION, value=value)


def _mean(values: pl.Series) -> float:
    return float(values.to_numpy().mean())


def _share(right: float, fails: float) -> float | None:
    """Return the share of right answers among those that do not fail."""
    return right / (1 - fails) if fails < 1 else None


def _data(estimate: Estimate | None) -> EstimateData:
    assert estimate is not None, "there are rows"
    return estimate.data()

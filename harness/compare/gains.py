"""The gain of a training, split into format and skill.

Accuracy is the share of answers that execute (format) times the share of those that are right
(skill). Each part of the gain is one share's change times the other's mean. An answer fails if the
evaluator cannot execute it, or if the attempt ended without one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from harness.compare.answers import no_result
from harness.compare.estimates import accuracy, crossed_mean
from harness.compare.starts import over_starts

if TYPE_CHECKING:
    import polars as pl

    from harness.compare.estimates import Estimate
    from harness.compare.keys import EstimateData, Gain
    from harness.runs.reading import Run

QUESTION = ("seed", "cluster", "task_id")


def gains(arms: Mapping[str, Sequence[Run]]) -> dict[str, Gain]:
    """Return the gain of every arm's trainings between their first and last validation.

    Returns:
        By arm; empty if any run is an evaluation, is graded or has no validation before training,
        if its reward does not tell which answers fail, or if none does.
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
    """Return the gain of one arm.

    None without a question that is scored in both validations, or if the reward of one does not
    tell whether it fails.
    """
    import polars as pl

    before = pl.concat([_answers(run, 0) for run in runs])
    after = pl.concat([_answers(run) for run in runs])
    both = before.join(after, on=QUESTION, suffix="_final")
    unknown = both["fails"].has_nulls() or both["fails_final"].has_nulls()
    return None if both.is_empty() or unknown else split(both)


def split(both: pl.DataFrame) -> Gain:
    """Split the gain between two validations of the same questions.

    Args:
        both: Columns seed, cluster, task_id; right and fails, before training; right_final and
            fails_final, after it.
    """
    import polars as pl

    fails = _mean(both["fails"]), _mean(both["fails_final"])
    shares = _share(both["right"], fails[0]), _share(both["right_final"], fails[1])
    known = [share for share in shares if share is not None]
    # The mean of both shares makes the split the same in either order.
    worth = sum(known) / len(known) if known else 0.0
    # Both shares are estimated from the same answers, so each answer also counts by how it moves
    # them (linearisation: Woodruff 1971, J. Am. Stat. Assoc. 66, 411-414). The mean of these
    # influences is 0: they widen the interval and leave the estimate.
    influence = pl.lit(0.0)
    for suffix, failing, share in zip(("", "_final"), fails, shares, strict=True):
        if share is not None:
            moved = pl.col(f"right{suffix}") - share * (1 - pl.col(f"fails{suffix}"))
            influence += moved / (1 - failing) / len(known)
    total = pl.col("right_final") - pl.col("right")
    by_format = (pl.col("fails") - pl.col("fails_final")) * worth
    by_format += (fails[0] - fails[1]) * influence
    return {
        "fails_initial": _data(accuracy(_values(both, pl.col("fails")))),
        "fails_final": _data(accuracy(_values(both, pl.col("fails_final")))),
        "right_initial": shares[0],
        "right_final": shares[1],
        "gain": _data(crossed_mean(over_starts(_values(both, total)))),
        "by_format": _data(crossed_mean(over_starts(_values(both, by_format)))),
        "by_skill": _data(crossed_mean(over_starts(_values(both, total - by_format)))),
    }


def _answers(run: Run, step: int | None = None) -> pl.DataFrame:
    """Return scored answers of a validation: seed, cluster, task_id, right and fails (means)."""
    import polars as pl

    rows = run.validation(step)
    fails = no_result(rows.columns).cast(float)
    scored = rows.lazy().drop_nulls("reward")
    answers = scored.select("cluster", "task_id", right="reward", fails=fails)
    # The mean of a question with an unknown sample is unknown.
    mean_fails = pl.when(pl.col("fails").null_count() == 0).then(pl.mean("fails"))
    means = answers.group_by("cluster", "task_id").agg(pl.mean("right"), fails=mean_fails)
    seed = pl.lit(run.pairing, pl.Int64).alias("seed")
    return means.sort("cluster", "task_id").select(seed, pl.all()).collect()


def _values(rows: pl.DataFrame, value: pl.Expr) -> pl.DataFrame:
    return rows.select(*QUESTION, value=value)


def _mean(values: pl.Series) -> float:
    return float(values.to_numpy().mean())


def _share(right: pl.Series, fails: float) -> float | None:
    """Return the share of right answers among those that do not fail; None if all fail."""
    return _mean(right) / (1 - fails) if fails < 1 else None


def _data(estimate: Estimate | None) -> EstimateData:
    assert estimate is not None, "there are rows"
    # Influences of single answers may exceed 1; shares and their changes cannot.
    return estimate.within(1.0).data()

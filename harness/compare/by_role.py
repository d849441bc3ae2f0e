"""Results by role, the common source of commands, notebooks, comparisons and reports."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean, stdev
from typing import TYPE_CHECKING, cast, get_type_hints

from harness.compare.estimates import CONFIDENCE, t_quantile
from harness.compare.keys import ByRole, Figures, Interval, RoleFigure, RoleFigures
from harness.compare.runs import finite

if TYPE_CHECKING:
    import polars as pl

    from harness.compare.runs import Run

COUNTS = ("calls", "failed_calls", "cut", "prompt_tokens", "response_tokens", "trained")
RATES = ("per_rollout", "token_share")
"""Endings of the figures that a role without a call has."""
_HINTS = get_type_hints(RoleFigures, include_extras=True)
ROLE_FIGURES: dict[str, tuple[str, str]] = {
    name: hint.__metadata__[1:] for name, hint in _HINTS.items()
}
"""Column head and format of every figure."""


def roles_table(run: Run, *keys: str) -> pl.DataFrame:
    """Summarize each role over all rollouts with the same `keys`.

    Args:
        keys: `phase`, or `step` and `phase`.

    Returns:
        One row per role and combination of keys, in the order of first calls: `run`, its id; the
        keys; `rollouts`; `role`; `COUNTS` and `paid` as sums; and the figures of `RoleFigures`.
        Null if not recorded, never zero. No rows if the run recorded neither roles nor calls.
    """
    import polars as pl

    def whole(name: str) -> pl.Expr:
        return pl.when(pl.col(name).null_count() == 0).then(pl.col(name).sum())

    every, each = _rows(run), [*keys, "role"]
    known = [name for name in (*COUNTS, "paid") if every[name].null_count() < len(every)]
    rows = every.group_by(each).agg(
        pl.mean("reward"), **{name: whole(name) for name in (*COUNTS, "paid")}
    )
    roles = every.select("role").unique(maintain_order=True)
    grid = (
        run.episodes.group_by(keys, maintain_order=True)
        .agg(rollouts=pl.len())
        .join(roles, how="cross")
    )
    rows = grid.join(rows, each, "left", maintain_order="left")  # an uncalled role made 0 calls
    rows = rows.with_columns(
        pl.when(pl.col("calls").is_null()).then(0).otherwise(name).alias(name) for name in known
    )
    per_rollout = ("calls", "failed_calls", "prompt_tokens", "response_tokens")
    return rows.select(
        pl.lit(run.id).alias("run"),
        pl.all(),
        *((pl.col(name) / pl.col("rollouts")).alias(f"{name}_per_rollout") for name in per_rollout),
        tokens_per_reply=pl.col("response_tokens") / pl.col("calls"),
        token_share=pl.col("response_tokens") / whole("response_tokens").over(keys),
        cut_share=pl.col("cut") / pl.col("calls"),
        credit=pl.col("paid") / pl.col("trained"),
    ).fill_nan(None)


def role_figures(run: Run) -> dict[str, RoleFigures]:
    """Return every role's figures in the last validation, or in training without one."""
    trained = roles_table(run, "phase").filter(phase="train")
    last = roles_table(run, "step", "phase").filter(
        phase="val", step=run.validation()["step"].max()
    )
    credits, found = dict(trained.select("role", "credit").rows()), last if len(last) else trained
    each = zip(found["role"], found.select(*ROLE_FIGURES).to_dicts(), strict=True)
    return {
        role: cast(RoleFigures, figures | {"credit": credits.get(role)}) for role, figures in each
    }


def held_by_role(arms: Mapping[str, Sequence[Figures]], baseline: str = "") -> ByRole:
    """Return every role's figures per arm over seeds, with differences paired by seed.

    Args:
        arms: The figures of every run, by arm.
        baseline: Name of the baseline arm; empty for no differences.
    """

    def figure(runs: Sequence[Figures], role: str, name: str) -> RoleFigure:
        against = arms.get(baseline, ())
        mine, theirs = (
            _by_seed(runs, role, name),
            _by_seed(() if runs is against else against, role, name),
        )
        differences = [mine[seed] - theirs[seed] for seed in mine if seed in theirs]
        (mean, interval), (difference, between) = (
            _over_seeds([*mine.values()]),
            _over_seeds(differences),
        )
        return {
            "mean": mean,
            "interval": interval,
            "difference": difference,
            "difference_interval": between,
        }

    roles = {
        arm: dict.fromkeys(role for run in runs for role in run["by_role"])
        for arm, runs in arms.items()
    }
    names = list(ROLE_FIGURES)
    return {
        a: {role: {n: figure(arms[a], role, n) for n in names} for role in of}
        for a, of in roles.items()
    }


def _rows(run: Run) -> pl.DataFrame:
    """Return one row per rollout and role.

    Older episodes lack roles; for them, one row per call.
    """
    import polars as pl

    schema = {
        "role": pl.String,
        **dict.fromkeys(COUNTS, pl.Int64),
        "paid": pl.Float64,
        "reward": pl.Float64,
    }
    rows = run.episodes
    if "by_role" in rows.columns and not rows["by_role"].null_count():
        each = pl.col("by_role").str.json_decode(pl.List(pl.Struct(schema)))
        try:
            decoded = rows.select("step", "phase", each)
        except pl.exceptions.ComputeError:  # a cell is no JSON: the calls themselves are counted
            pass
        else:
            roles = decoded.explode("by_role").drop_nulls("by_role").unnest("by_role")
            return finite(roles)
    nothing = pl.DataFrame(
        schema={"step": pl.Int64, "phase": pl.String, "role": pl.String, "trained": pl.Boolean}
    )
    calls = nothing if run.transitions is None else run.transitions
    there = {
        name: pl.col(name) if name in calls.columns else pl.lit(None)
        for name in (*schema, "finish_reason")
    }
    there |= {"calls": pl.lit(1), "paid": pl.when("trained").then(there["paid"]).otherwise(0.0)}
    there["cut"] = there["finish_reason"] == "length"
    return calls.select(
        "step", "phase", **{name: there[name].cast(kind) for name, kind in schema.items()}
    )


def _by_seed(runs: Sequence[Figures], role: str, name: str) -> dict[tuple[int, int], float]:
    """Return one figure by seed, for runs that have it; the rate of an uncalled role is 0."""
    found = {}
    for run in runs:
        others: list[Mapping[str, object]] = list(run["by_role"].values())
        zero = (
            0.0 if name.endswith(RATES) and any(one[name] is not None for one in others) else None
        )
        found[run["start"], run["seed"]] = cast(
            "float | None", dict(run["by_role"].get(role, {name: zero}))[name]
        )
    return {seed: value for seed, value in found.items() if value is not None}


def _over_seeds(values: Sequence[float]) -> tuple[float | None, Interval | None]:
    """Return the mean, and Student's interval for two or more values."""
    if len(values) < 2:
        return (values[0] if values else None), None
    mean, errors = fmean(values), t_quantile(0.5 + CONFIDENCE / 2, len(values) - 1)
    half = errors * stdev(values) / math.sqrt(len(values))
    return mean, (mean - half, mean + half)

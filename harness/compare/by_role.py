"""Results by role, the common source of commands, notebooks, comparisons and reports."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean, stdev
from typing import TYPE_CHECKING, cast, get_type_hints

from harness.compare.distributions import t_quantile
from harness.compare.estimates import CONFIDENCE
from harness.compare.keys import ByRole, Figures, Interval, RoleFigure, RoleFigures
from harness.runs.reading import finite

if TYPE_CHECKING:
    import polars as pl

    from harness.runs.reading import Run

COUNTS = ("calls", "failed_calls", "cut", "prompt_tokens", "response_tokens", "trained")
RATES = ("per_rollout", "token_share")
"""Suffixes of figures that are defined for a role without calls."""
_MAY_BE_NEGATIVE = ("credit", "reward")
"""Figures that may be negative, since rewards may be; all others are counts or shares."""
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
    return _summed(run, _rows(run), keys)


def _summed(run: Run, every: pl.DataFrame, keys: Sequence[str]) -> pl.DataFrame:
    """Return `roles_table`, given one row per rollout and role."""
    import polars as pl

    def whole(name: str) -> pl.Expr:
        return pl.when(pl.col(name).null_count() == 0).then(pl.col(name).sum())

    group_keys = [*keys, "role"]
    summed = (*COUNTS, "paid")
    recorded = []
    sums = {}
    for name in summed:
        sums[name] = whole(name)
        if every[name].null_count() < len(every):
            recorded.append(name)
    rows = every.lazy().group_by(group_keys).agg(pl.mean("reward"), **sums)
    # A rollout may skip a role. Every role is paired with all rollouts, or the figures of a role
    # that is seldom called would be means over only the rollouts that called it.
    # The order of roles matters, and a lazy cross join does not keep it.
    roles = every.select("role").unique(maintain_order=True)
    rollouts = run.episodes.group_by(keys, maintain_order=True).agg(rollouts=pl.len())
    grid = rollouts.join(roles, how="cross").lazy()
    rows = grid.join(rows, group_keys, "left", maintain_order="left")
    # A role without a call made 0 calls. A count that the run did not record stays unknown.
    uncalled = pl.col("calls").is_null()
    filled: list[pl.Expr] = []
    for name in recorded:
        filled.append(pl.when(uncalled).then(0).otherwise(name).alias(name))
    # In one step, because the other columns depend on `calls` before it is filled.
    rows = rows.with_columns(filled)
    rates = []
    for name in ("calls", "failed_calls", "prompt_tokens", "response_tokens"):
        rates.append((pl.col(name) / pl.col("rollouts")).alias(f"{name}_per_rollout"))
    figures = rows.select(
        pl.lit(run.id).alias("run"),
        pl.all(),
        *rates,
        tokens_per_reply=pl.col("response_tokens") / pl.col("calls"),
        token_share=pl.col("response_tokens") / whole("response_tokens").over(keys),
        cut_share=pl.col("cut") / pl.col("calls"),
        credit=pl.col("paid") / pl.col("trained"),
    )
    return figures.fill_nan(None).collect()


def role_figures(run: Run) -> dict[str, RoleFigures]:
    """Return every role's figures in the last validation, or in training without one."""
    every = _rows(run)
    trained = _summed(run, every, ["phase"]).filter(phase="train")
    last_step = run.validation()["step"].max()
    last = _summed(run, every, ["step", "phase"]).filter(phase="val", step=last_step)
    # A validation assigns no credit, so credit always comes from training.
    credits = dict(zip(trained["role"], trained["credit"], strict=True))
    table = last if len(last) else trained
    by_role: dict[str, RoleFigures] = {}
    for row in table.iter_rows(named=True):
        figures = {name: row[name] for name in ROLE_FIGURES}
        by_role[row["role"]] = cast(RoleFigures, figures | {"credit": credits.get(row["role"])})
    return by_role


def held_by_role(arms: Mapping[str, Sequence[Figures]], baseline: str = "") -> ByRole:
    """Return every role's figures per arm over seeds, with differences paired by seed.

    Args:
        arms: The figures of every run, by arm.
        baseline: Name of the baseline arm; empty for no differences.
    """
    held: ByRole = {}
    for arm, runs in arms.items():
        # The baseline has no difference to itself.
        base_runs = () if arm == baseline else arms.get(baseline, ())
        held[arm] = {}
        for role in _roles_of(runs):
            figures: dict[str, RoleFigure] = {}
            for name in ROLE_FIGURES:
                figures[name] = _role_figure(runs, base_runs, role, name)
            held[arm][role] = figures
    return held


def _roles_of(runs: Sequence[Figures]) -> list[str]:
    """Return the roles of all runs, in the order of their first appearance."""
    roles: dict[str, None] = {}
    for run in runs:
        roles |= dict.fromkeys(run["by_role"])
    return list(roles)


def _role_figure(
    runs: Sequence[Figures], base_runs: Sequence[Figures], role: str, name: str
) -> RoleFigure:
    """Return the mean of one figure over seeds, and its difference over the common seeds."""
    by_seed = _by_seed(runs, role, name)
    base_by_seed = _by_seed(base_runs, role, name)
    # Runs of one seed share the order of the tasks, so their differences vary less than the
    # difference of two means over all seeds would.
    differences = []
    for seed, value in by_seed.items():
        if seed in base_by_seed:
            differences.append(value - base_by_seed[seed])
    mean, interval = _over_seeds(list(by_seed.values()))
    if interval is not None and name not in _MAY_BE_NEGATIVE:
        # Student's interval is symmetric, and with few seeds reaches values that none can have.
        most = 1.0 if name.endswith("share") else math.inf
        interval = (max(interval[0], 0.0), min(interval[1], most))
    difference, difference_interval = _over_seeds(differences)
    return {
        "mean": mean,
        "interval": interval,
        "difference": difference,
        "difference_interval": difference_interval,
    }


def role_schema() -> dict[str, type[pl.DataType]]:
    """Return columns and types of one role's figures in a rollout."""
    import polars as pl

    return {
        "role": pl.String,
        **dict.fromkeys(COUNTS, pl.Int64),
        "paid": pl.Float64,
        "reward": pl.Float64,
    }


def role_lists(kind: pl.DataType) -> pl.Expr:
    """Return the expression of the column `by_role` as lists of figures, one entry a role.

    A run has it as JSON, an archive of runs as lists, which compress better. A cell that is not
    JSON raises `polars.exceptions.ComputeError` when the expression is computed.

    Args:
        kind: The column's type.
    """
    import polars as pl

    lists = pl.List(pl.Struct(role_schema()))
    column = pl.col("by_role")
    return column.str.json_decode(lists) if kind == pl.String else column.cast(lists)


def _rows(run: Run) -> pl.DataFrame:
    """Return one row per rollout and role.

    Older episodes lack roles; for them, one row per call.
    """
    import polars as pl

    schema = role_schema()
    rows = run.episodes
    if "by_role" in rows.columns and not rows["by_role"].null_count():
        decoded = rows.lazy().select("step", "phase", role_lists(rows.schema["by_role"]))
        roles = decoded.explode("by_role").drop_nulls("by_role").unnest("by_role")
        try:
            return finite(roles).collect()
        except pl.exceptions.PolarsError:  # no lists of figures: the calls themselves are counted
            pass
    return _rows_of_calls(run, schema)


def _rows_of_calls(run: Run, schema: Mapping[str, type[pl.DataType]]) -> pl.DataFrame:
    """Return one row per call, with the columns of `schema`."""
    import polars as pl

    nothing = pl.DataFrame(
        schema={"step": pl.Int64, "phase": pl.String, "role": pl.String, "trained": pl.Boolean}
    )
    calls = nothing if run.transitions is None else run.transitions
    # Tables of older versions lack some columns; null keeps "not recorded" apart from 0.
    columns: dict[str, pl.Expr] = {}
    for name in (*schema, "finish_reason"):
        columns[name] = pl.col(name) if name in calls.columns else pl.lit(None)
    columns["calls"] = pl.lit(1)
    columns["paid"] = pl.when("trained").then(columns["paid"]).otherwise(0.0)
    columns["cut"] = columns["finish_reason"] == "length"
    typed = {name: columns[name].cast(kind) for name, kind in schema.items()}
    return calls.select("step", "phase", **typed)


def _by_seed(runs: Sequence[Figures], role: str, name: str) -> dict[tuple[int, int], float]:
    """Return one figure by seed, for runs that have it; the rate of an uncalled role is 0."""
    values: dict[tuple[int, int], float] = {}
    for run in runs:
        if role in run["by_role"]:
            figures: Mapping[str, object] = run["by_role"][role]
            value = cast("float | None", figures[name])
        else:
            value = _without_call(run, name)
        if value is not None:
            values[run["start"], run["seed"]] = value
    return values


def _without_call(run: Figures, name: str) -> float | None:
    """Return a figure of a role that was never called: 0 for a rate that the run recorded."""
    # Leaving such a run out would overstate the role: its mean would cover only runs that used it.
    if not name.endswith(RATES):
        return None
    others: list[Mapping[str, object]] = list(run["by_role"].values())
    recorded = any(figures[name] is not None for figures in others)
    return 0.0 if recorded else None


def _over_seeds(values: Sequence[float]) -> tuple[float | None, Interval | None]:
    """Return the mean, and Student's interval for two or more values."""
    if len(values) < 2:
        return (values[0] if values else None), None
    # Seeds are few, so the normal quantile would make the interval too short.
    mean, errors = fmean(values), t_quantile(0.5 + CONFIDENCE / 2, len(values) - 1)
    half = errors * stdev(values) / math.sqrt(len(values))
    return mean, (mean - half, mean + half)

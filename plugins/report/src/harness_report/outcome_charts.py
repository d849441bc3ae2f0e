"""Charts of what agents do: rewrites, turns, roles, groups of questions, tokens and failures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

from harness_report.arms import Arms, last_of, measured_of, several_in
from harness_report.figures import (
    COLOURS,
    DASHES,
    Figure,
    bar_of,
    by_step,
    colour_of,
    dash_of,
    figure_of,
    means_of,
    trace_of,
)

if TYPE_CHECKING:
    import polars as pl

    from harness.compare.keys import Figures
    from harness.runs.reading import Run


def rewrites(arms: Arms) -> Figure:
    """Plot the share of validation questions that a rewrite helped (up) or hurt (down), by step."""
    import polars as pl

    data: list[Figure] = []
    first, last = pl.col("first_reward"), pl.col("reward")
    for index, (arm, runs) in enumerate(arms.items()):
        helped: dict[int, list[float]] = {}
        hurt: dict[int, list[float]] = {}
        for run in runs:
            validated = run.episodes.filter(phase="val").drop_nulls(["reward", "first_reward"])
            changed = validated.group_by("step").agg(
                (last > first).mean().alias("up"), (last < first).mean().alias("down")
            )
            for step, up, down in changed.sort("step").rows():
                helped.setdefault(step, []).append(up)
                hurt.setdefault(step, []).append(-down)
        # An agent without rewrites would be a line of zeros.
        shares = chain(*helped.values(), *hurt.values())
        if not any(shares):
            continue
        for name, shares_by_step in (("helped", helped), ("hurt", hurt)):
            means = means_of(shares_by_step.values())
            hover = f"{name} %{{y:+.1%}} at step %{{x}}"
            trace = trace_of(arm, "lines+markers", shares_by_step, means, hover)
            line = {
                "color": colour_of(index),
                "width": 2,
                "dash": "solid" if name == "helped" else "dot",
            }
            data.append(trace | {"legendgroup": arm, "showlegend": name == "helped", "line": line})
    # An evaluation has no steps.
    if all(len(trace["x"]) < 2 for trace in data):
        data = []
    caption = (
        "Share of validation questions that the rewrite turned right (above) "
        "or wrong (below, dotted)."
    )
    figure = figure_of(
        "rewrites", "Rewrites that helped and hurt", caption, data, "step", "share of questions"
    )
    figure["layout"]["yaxis"] |= {"tickformat": "+.1%", "zeroline": True}
    return figure


def turns(arms: Arms) -> Figure:
    """Plot the number of answers per rollout in the last validation, if any has several."""
    data: list[Figure] = []
    # If no rollout of any arm has several answers, the chart would be one bar of 100 % an arm.
    several = False
    for index, (arm, runs) in enumerate(arms.items()):
        rewrites_of = Counter(_of_ended(runs, "rewrites"))
        if not rewrites_of:
            continue
        answers: list[str] = []
        shares: list[float] = []
        for count, rollouts in sorted(rewrites_of.items()):
            # The first answer is no rewrite.
            answers.append(str(count + 1))
            shares.append(rollouts / rewrites_of.total())
            several = several or count > 0
        data.append(bar_of(arm, index, answers, shares))
    caption = (
        f"Answers written for a question in the {last_of(arms)}: 1 means that the first was kept."
    )
    data = data if several else []
    axes = ("answers written", "share of questions")
    return figure_of("turns", "Turns", caption, data, *axes, percent=True, categories=True)


def by_role(arms: Arms, key: str, title: str, y: str, form: str) -> Figure:
    """Plot a figure per role for each step's rollouts, unless there are too many curves."""
    from harness.compare.by_role import roles_table

    curves: dict[str, list[dict[int, float]]] = {}
    for arm, runs in arms.items():
        tables: list[pl.DataFrame] = []
        roles: dict[str, None] = {}
        for run in runs:
            rows = roles_table(run, "step", "phase").filter(phase="train")
            table = rows.join(run.training, "step", "semi").drop_nulls(key)
            tables.append(table)
            roles |= dict.fromkeys(table["role"])
        for role in roles if len(roles) > 1 else ():
            role_curves = []
            for table in tables:
                values = dict(table.filter(role=role).select("step", key).rows())
                # In a step without a call of the role its figure is 0, not unknown: a gap would be
                # drawn as a line between its neighbours.
                role_curves.append(dict.fromkeys(table["step"], 0.0) | values)
            curves[role if len(arms) == 1 else f"{arm}, {role}"] = role_curves
    # More curves than colours and dashes could not be distinguished.
    if len(curves) > len(COLOURS) * len(DASHES):
        curves = {}
    caption = "Of training rollouts."
    if several_in(arms):
        caption = (
            "Of training rollouts, mean over seeds; "
            "the band reaches from the lowest to the highest."
        )
    return by_step(f"role-{key}", title, caption, y, curves, form)


def by_group(arms: Arms, column: str, title: str) -> Figure:
    """Plot final accuracy by difficulty or cluster: bars, or dots if there are many groups."""
    import polars as pl

    means: dict[str, dict[str, float]] = {}
    sizes: dict[str, int] = {}
    for arm, runs in arms.items():
        validated = [run.validation().select(column, "task_id", "reward") for run in runs]
        rows = pl.concat(validated).drop_nulls().filter(pl.col(column) != "")
        groups = rows.group_by(column).agg(pl.mean("reward"), pl.n_unique("task_id"))
        if len(groups):
            means[arm] = dict(groups.select(column, "reward").rows())
            sizes |= dict(groups.select(column, "task_id").rows())
    names = sorted(sizes, key=_by_level)
    # In a small group a single question moves the mean by several points, so its size is shown.
    labels = [f"{name} ({sizes[name]})" for name in names]
    seeds = ", mean over seeds" if several_in(arms) else ""
    caption = f"{last_of(arms).capitalize()}{seeds}; in brackets the number of questions."
    data: list[Figure] = []
    # A single group is the whole validation. Colours follow the arms of all charts, so an arm
    # without groups still takes its number.
    for index, arm in enumerate(arms):
        if arm in means and len(names) > 1:
            data.append(bar_of(arm, index, labels, [means[arm].get(name) for name in names]))
    key = f"by-{column}"
    if len(names) <= _FEW:
        return figure_of(
            key, title, caption, data, "", measured_of(arms), percent=True, categories=True
        )
    for bars in data:
        bars |= {"type": "scatter", "mode": "markers", "x": bars["y"], "y": bars["x"]}
        bars["marker"] |= {"size": 8, "opacity": 0.75}
        bars["hovertemplate"] = "%{x:.1%} %{y}"
    figure = figure_of(key, title, caption, data, measured_of(arms), "")
    figure["layout"] |= {"height": 120 + 20 * len(names)}
    figure["layout"]["yaxis"] |= {"type": "category", "range": [len(names) - 0.4, -0.6], "dtick": 1}
    return figure


_FEW = 10
"""Maximum number of groups that are shown as bars."""
_LEVELS = ("easy", "medium", "hard", "extra")


def _by_level(name: str) -> tuple[int, str]:
    """Sort known levels of difficulty from easy to hard, and other groups by name after them."""
    return _LEVELS.index(name) if name in _LEVELS else len(_LEVELS), name


def tokens(arms: Arms, column: str, title: str) -> Figure:
    """Plot a histogram of tokens per rollout in the last validation."""
    import numpy as np

    values: dict[str, list[Any]] = {}
    everything: list[Any] = []
    for arm, runs in arms.items():
        values[arm] = _of_ended(runs, column)
        everything += values[arm]
    if not everything:
        return figure_of(column, title, "", [], "", "")
    # The same bins for all arms: with bins of its own, each curve would have another scale.
    bins = min(30, max(5, len(set(everything))))
    edges = np.histogram_bin_edges(everything, bins=bins)
    centres = ((edges[1:] + edges[:-1]) / 2).tolist()
    data: list[Figure] = []
    for index, (arm, counts) in enumerate(values.items()):
        if counts:
            shares = (np.histogram(counts, edges)[0] / len(counts)).tolist()
            line = {"shape": "hvh", "color": colour_of(index), "width": 2, "dash": dash_of(index)}
            trace = trace_of(arm, "lines", centres, shares, "%{y:.1%} about %{x:.0f} tokens")
            data.append(trace | {"line": line})
    caption = f"Share of rollouts by tokens over all their calls, in the {last_of(arms)}."
    return figure_of(
        column.replace("_", "-"), title, caption, data, "tokens", "share of rollouts", percent=True
    )


def failures(figures: Mapping[str, list[Figures]]) -> Figure:
    """Plot rollouts of the whole run without a score, and answers that did not execute."""
    causes: dict[str, None] = {}
    for runs in figures.values():
        for run in runs:
            causes |= dict.fromkeys(run["failures"])
    names = [cause.replace("_", " ") for cause in causes]
    data: list[Figure] = []
    for index, (arm, runs) in enumerate(figures.items() if causes else ()):
        counts = Counter[str]()
        for run in runs:
            counts.update(run["failures"])
        bars = bar_of(arm, index, names, [counts[cause] for cause in causes])
        # Bars are horizontal, so that their thickness stays the same with one type and one arm.
        bars |= {"orientation": "h", "x": bars["y"], "y": bars["x"]}
        bars["hovertemplate"] = "%{x} rollouts: %{y}"
        data.append(bars)
    caption = (
        "All rollouts of all seeds. Failures of the agent (answer fails, agent error, timeout, "
        "prompt too long, no transitions) are wrong; all others are unscored."
    )
    figure = figure_of("failures", "Failures by type", caption, data, "rollouts", "")
    figure["layout"] |= {"height": 130 + len(names) * (16 + 16 * len(data)) + 12 * len(data)}
    figure["layout"]["yaxis"] |= {"type": "category", "autorange": "reversed"}
    return figure


def _of_ended(runs: Sequence[Run], column: str) -> list[Any]:
    """Return a column for the rollouts of the last validations that ended normally."""
    values: list[Any] = []
    for run in runs:
        values += run.validation().filter(outcome="ok")[column].drop_nulls().to_list()
    return values

"""The figures of a report as plotly JSON. The page applies the colours of its theme."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from harness.util.formatting import measured
from harness_report.figures import (
    COLOURS,
    DASHES,
    Curves,
    Figure,
    banded,
    bar_of,
    by_step,
    colour_of,
    dash_of,
    figure_of,
    scaled,
    trace_of,
)

if TYPE_CHECKING:
    from harness.compare.keys import Comparison, Figures
    from harness.compare.runs import Run

PARTS = {"rollout": "#2a7de1", "update": "#e07b00", "weights": "#1a9c6b", "other": "#8d99a6"}
Arms = Mapping[str, Sequence["Run"]]


def charts(
    arms: Arms, comparison: Comparison | None, figures: Mapping[str, list[Figures]]
) -> list[Figure]:
    """Return all charts with data: id, title, caption, data and layout.

    Args:
        figures: `measure` of every run, by arm.
    """
    made = [
        validation_curve(arms),
        differences(comparison),
        training_curve(arms),
        cost_split(figures),
        signal(figures),
        *logged(arms),
        rewrites(arms),
        turns(arms),
        by_role(arms, "calls_per_rollout", "Calls by role", "calls a rollout", ".2f"),
        by_role(arms, "token_share", "Share of tokens by role", "share of sampled tokens", ".1%"),
        by_group(arms, "difficulty", f"{_measured(arms).capitalize()} by difficulty"),
        tokens(arms, "prompt_tokens", "Prompt tokens of a rollout"),
        tokens(arms, "response_tokens", "Response tokens of a rollout"),
        failures(figures),
        by_group(arms, "cluster", f"{_measured(arms).capitalize()} by cluster"),
    ]
    spans = [run.span for runs in arms.values() for run in runs] or [(0.0, 1.0)]
    span = min(low for low, _ in spans), max(high for _, high in spans)
    return [scaled(figure, span, _graded(arms)) for figure in made if figure["data"]]


def _last(arms: Arms) -> str:
    return (
        "last validation"
        if any(run.trained for runs in arms.values() for run in runs)
        else "evaluation"
    )


def _graded(arms: Arms) -> bool:
    return any(run.graded for runs in arms.values() for run in runs)


def _several(arms: Mapping[str, Sequence[object]]) -> bool:
    """Return whether any arm has several runs, so that there are means over seeds, and bands."""
    return any(len(runs) > 1 for runs in arms.values())


def _measured(arms: Arms) -> str:
    return measured(_graded(arms))


def validation_curve(arms: Arms) -> Figure:
    """Plot the mean over seeds with their range as a band, and a ring for a running validation."""
    trained = {arm: [run for run in runs if run.trained] for arm, runs in arms.items()}
    asked = max((run.validated_tasks() for runs in trained.values() for run in runs), default=0)
    caption = f"Of {asked} questions."
    if _several(trained):
        caption = (
            f"Mean over seeds, of {asked} questions; "
            "the band reaches from the worst to the best seed."
        )
    curves = {arm: [run.val_curve() for run in runs] for arm, runs in trained.items()}
    figure = by_step(
        "validation", f"Validation {_measured(arms)}", caption, _measured(arms), curves
    )
    for index, (arm, runs) in enumerate(trained.items()):
        for now in (run.progress for run in runs):
            if now.validating is not None and now.val_so_far is not None:
                label = f"%{{y:.1%}} so far, {now.done} of {now.expected}"
                ring = {
                    "size": 10,
                    "symbol": "circle-open",
                    "color": colour_of(index),
                    "line": {"width": 2},
                }
                trace = trace_of(arm, "markers", [now.validating], [now.val_so_far], label)
                figure["data"].append(
                    trace | {"marker": ring, "legendgroup": arm, "showlegend": False}
                )
    return figure


def training_curve(arms: Arms) -> Figure:
    """Plot every step's mean reward: as points if a line shows the mean of every k steps, else as the line."""
    data: list[Figure] = []
    window = 1
    for index, (arm, runs) in enumerate(arms.items()):
        by_step: dict[int, list[float]] = {}
        for run in runs:
            for step, value in run.logged("rollout/reward").items():
                by_step.setdefault(step, []).append(value)
        if not by_step:
            continue
        steps = sorted(by_step)
        window = max(1, len(steps) // 8)
        means = [sum(by_step[step]) / len(by_step[step]) for step in steps]
        if window > 1:
            points = trace_of(arm, "markers", steps, means, "%{y:.1%} at step %{x}")
            marker = {"size": 4, "color": colour_of(index), "opacity": 0.4}
            data.append(points | {"legendgroup": arm, "showlegend": False, "marker": marker})
        chunks = [steps[start : start + window] for start in range(0, len(steps), window)]
        data += banded(
            arm,
            index,
            [chunk[-1] for chunk in chunks],
            [[sum(by_step[s]) / len(by_step[s]) for s in chunk] for chunk in chunks],
            band=False,
        )
    seeds = " over seeds" * _several(arms)
    caption = f"Mean reward of each step{seeds}. Sampled, not greedy."
    if window > 1:
        caption = f"Points: mean reward of one step{seeds}. Line: mean of every {window} steps. Sampled, not greedy."
    return figure_of("training", "Training reward", caption, data, "step", "reward", percent=True)


def signal(figures: Mapping[str, list[Figures]]) -> Figure:
    """Plot the share of each step's groups with a training signal, as a mean over seeds."""
    caption = (
        "Groups of rollouts of one task in which rewards differ, "
        "or with train.algorithm=rejection one that is trained "
        "on; others give no gradient."
    )
    if _several(figures):
        caption += " Mean over seeds, the band reaches from the least to the most."
    shares = {arm: [run["signal_by_step"] for run in runs] for arm, runs in figures.items()}
    return by_step("signal", "Groups with signal", caption, "share of groups", shares)


def logged(arms: Arms) -> list[Figure]:
    """Plot what a trainer logs of the policy and the cost of rollouts, if it is logged."""

    def of(measure: str) -> Curves:
        return {arm: [run.logged(measure) for run in runs] for arm, runs in arms.items()}

    clipped = (
        "Tokens with a clipped update, by the bound on the ratio of probabilities. "
        "Dotted: replies cut at the "
    )
    figure = by_step(
        "clipped", "Clipped share", f"{clipped}token limit.", "share", of("clipped"), ".2%"
    )
    for trace in by_step("cut", "", "", "", of("cut"), ".2%")["data"]:
        figure["data"].append(
            trace | {"showlegend": False, "line": {**trace["line"], "dash": "dot"}}
        )
    if figure["data"]:
        shares = [share for trace in figure["data"] for share in trace["y"]]
        if any(trace["line"].get("dash") == "dot" for trace in figure["data"]):
            figure["data"].append(_legend_entry("dotted: replies cut", "dot"))
        # If no token is clipped, the axis ends at 1 %: a whole axis would show nothing.
        top = {"range": [0, 0.01]} if max(shares) < 0.001 else {}
        figure["layout"]["yaxis"] |= {"tickformat": ".2~%", **top}
    length = (
        "Tokens that the policy wrote in a training rollout, over all its calls; mean of the step."
    )
    speeds = {arm: [_tokens_per_s(run) for run in runs] for arm, runs in arms.items()}
    speed = (
        "Tokens that the policy wrote in a step's training rollouts, "
        "by the seconds that these took."
    )
    lengths = of("rollout/response_tokens_per_rollout")
    return [
        by_step(
            "entropy",
            "Entropy",
            "Of the policy, mean over trained tokens.",
            "nats a token",
            of("entropy"),
            ".3f",
        ),
        figure,
        by_step("lengths", "Response length", length, "tokens a rollout", lengths, ".1f"),
        by_step("speed", "Tokens per second", speed, "tokens/s", speeds, ",.0f"),
    ]


def _legend_entry(name: str, dash: str) -> Figure:
    """Return a trace without points, which explains a style of lines in the legend."""
    entry = trace_of(name, "lines", [None], [None], "")
    return entry | {"line": {"color": "#8d99a6", "width": 2.5, "dash": dash}}


def _tokens_per_s(run: Run) -> dict[int, float]:
    names = ("rollout/response_tokens_per_rollout", "rollout/rollouts", "rollout_s")
    tokens, rollouts, seconds = map(run.logged, names)
    return {
        step: tokens[step] * rollouts[step] / spent
        for step, spent in seconds.items()
        if step in tokens and spent
    }


def differences(comparison: Comparison | None) -> Figure:
    """Plot final accuracy against the baseline, with intervals and the margin."""
    pairs = list(reversed(comparison["pairs"])) if comparison else []
    data: list[Figure] = []
    if pairs and comparison:
        colours = {arm["name"]: colour_of(index) for index, arm in enumerate(comparison["arms"])}
        found = [(pair, pair["difference"]) for pair in pairs]
        ends: Figure = {"type": "data", "symmetric": False, "thickness": 2, "width": 6}
        ends["array"] = [100 * (one["high"] - one["mean"]) for _, one in found]
        ends["arrayminus"] = [100 * (one["mean"] - one["low"]) for _, one in found]
        dots: Figure = {"type": "scatter", "mode": "markers", "error_x": ends, "showlegend": False}
        dots |= {"x": [100 * one["mean"] for _, one in found], "y": [pair["arm"] for pair in pairs]}
        dots |= {"marker": {"size": 11, "color": [colours[pair["arm"]] for pair in pairs]}}
        dots |= {"text": [pair["verdict"] for pair in pairs]}
        data.append(dots | {"hovertemplate": "%{y}: %{x:+.1f} points, %{text}<extra></extra>"})
    margin = comparison["margin"] if comparison else None
    base = comparison["baseline"] if comparison else ""
    what = (
        "Hundredths of mean reward"
        if comparison and comparison.get("graded")
        else "Points of accuracy"
    )
    caption = f"{what} against {base}, with 95 % intervals."
    if margin:
        caption += (
            f" Shaded: the margin of ±{100 * margin:g} points "
            "within which arms count as equivalent."
        )
    figure = figure_of("differences", "Difference to the baseline", caption, data, "points", "")
    whole: Figure = {"y0": 0, "y1": 1, "yref": "paper"}
    shapes = [whole | {"type": "line", "x0": 0, "x1": 0, "line": {"width": 1, "color": "#8d99a6"}}]
    if margin:
        band = {"fillcolor": "rgba(26,156,107,.15)", "line": {"width": 0}, "layer": "below"}
        shapes.append(whole | {"type": "rect", "x0": -100 * margin, "x1": 100 * margin} | band)
    figure["layout"] |= {"shapes": shapes, "height": 130 + 46 * len(pairs)}
    figure["layout"]["yaxis"] |= {"type": "category", "range": [-0.6, len(pairs) - 0.4]}
    return figure


def cost_split(figures: Mapping[str, list[Figures]]) -> Figure:
    """Plot seconds of a step by part."""
    rows: dict[str, dict[str, float]] = {}
    for arm, runs in figures.items():
        timed = [(run["step_s"], run["shares"]) for run in runs if run["step_s"] is not None]
        if timed:
            rows[arm] = {
                part: sum(step_s * of.get(part, 0.0) for step_s, of in timed) / len(timed)
                for part in PARTS
            }
    names = list(reversed(rows))
    data = [
        {
            "type": "bar",
            "orientation": "h",
            "name": part,
            "y": names,
            "x": [rows[arm][part] for arm in names],
            "marker": {"color": colour},
            "hovertemplate": "%{x:.2f} s " + part + "<extra>%{y}</extra>",
        }
        for part, colour in PARTS.items()
        if rows
    ]
    caption = (
        "Seconds of a median step: rollouts, actor update with log-probabilities, "
        "weight transfer, the rest."
    )
    figure = figure_of("cost", "Where a step's time goes", caption, data, "seconds a step", "")
    figure["layout"] |= {"barmode": "stack", "height": 150 + 40 * len(rows)}
    figure["layout"]["yaxis"] |= {"type": "category"}
    return figure


def rewrites(arms: Arms) -> Figure:
    """Plot the share of validation questions that a rewrite helped (up) or hurt (down), by step."""
    import polars as pl

    data: list[Figure] = []
    first, last = pl.col("first_reward"), pl.col("reward")
    for index, (arm, runs) in enumerate(arms.items()):
        helped: dict[int, list[float]] = {}
        hurt: dict[int, list[float]] = {}
        for run in runs:
            rows = (
                run.episodes.filter(phase="val")
                .drop_nulls(["reward", "first_reward"])
                .group_by("step")
            )
            changed = rows.agg(
                (last > first).mean().alias("up"), (last < first).mean().alias("down")
            )
            for step, up, down in changed.sort("step").rows():
                helped.setdefault(step, []).append(up)
                hurt.setdefault(step, []).append(-down)
        if not any(any(values) for values in (*helped.values(), *hurt.values())):
            continue
        for name, found in (("helped", helped), ("hurt", hurt)):
            shares = [sum(values) / len(values) for values in found.values()]
            trace = trace_of(
                arm, "lines+markers", found, shares, f"{name} %{{y:+.1%}} at step %{{x}}"
            )
            line = {
                "color": colour_of(index),
                "width": 2,
                "dash": "solid" if name == "helped" else "dot",
            }
            data.append(trace | {"legendgroup": arm, "showlegend": name == "helped", "line": line})
    if all(len(trace["x"]) < 2 for trace in data):
        data = []  # an evaluation has no steps
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
    several = False  # one bar of 100 % says nothing
    for index, (arm, runs) in enumerate(arms.items()):
        counts = Counter(value + 1 for run in runs for value in _ended(run, "rewrites"))
        several = several or any(one > 1 for one in counts)
        if counts:
            shares = [counts[one] / counts.total() for one in sorted(counts)]
            data.append(bar_of(arm, index, [str(one) for one in sorted(counts)], shares))
    caption = (
        f"Answers written for a question in the {_last(arms)}: 1 means that the first was kept."
    )
    data = data if several else []
    axes = ("answers written", "share of questions")
    return figure_of("turns", "Turns", caption, data, *axes, percent=True, categories=True)


def by_role(arms: Arms, key: str, title: str, y: str, form: str) -> Figure:
    """Plot a figure per role for each step's rollouts, unless there are too many curves."""
    from harness.compare.by_role import roles_table

    curves: dict[str, list[dict[int, float]]] = {}
    for arm, runs in arms.items():
        every = [roles_table(run, "step", "phase").filter(phase="train") for run in runs]
        whole = [
            rows.join(run.training, "step", "semi").drop_nulls(key)
            for run, rows in zip(runs, every, strict=True)
        ]
        roles = dict.fromkeys(role for rows in whole for role in rows["role"])
        for role in roles if len(roles) > 1 else ():
            of = [
                (rows["step"], rows.filter(role=role).select("step", key).rows()) for rows in whole
            ]
            found = [dict.fromkeys(steps, 0.0) | dict(one) for steps, one in of]
            curves[role if len(arms) == 1 else f"{arm}, {role}"] = found
    curves = curves if len(curves) <= len(COLOURS) * len(DASHES) else {}
    caption = "Of training rollouts."
    if _several(arms):
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
        rows = pl.concat(
            [run.validation().select(column, "task_id", "reward") for run in runs]
        ).drop_nulls()
        groups = (
            rows.filter(pl.col(column) != "")
            .group_by(column)
            .agg(pl.mean("reward"), pl.n_unique("task_id"))
        )
        if len(groups):
            means[arm] = dict(groups.select(column, "reward").rows())
            sizes |= dict(groups.select(column, "task_id").rows())
    names = sorted(
        sizes, key=lambda name: (_LEVELS.index(name) if name in _LEVELS else len(_LEVELS), name)
    )
    labels = [f"{name} ({sizes[name]})" for name in names]
    seeds = ", mean over seeds" if _several(arms) else ""
    caption = f"{_last(arms).capitalize()}{seeds}; in brackets the number of questions."
    data = [
        bar_of(arm, index, labels, [means[arm].get(name) for name in names])
        for index, arm in enumerate(arms)
        if arm in means and len(names) > 1
    ]
    key = f"by-{column}"
    if len(names) <= _FEW:
        return figure_of(
            key, title, caption, data, "", _measured(arms), percent=True, categories=True
        )
    for bars in data:
        bars |= {"type": "scatter", "mode": "markers", "x": bars["y"], "y": bars["x"]}
        bars["marker"] |= {"size": 8, "opacity": 0.75}
        bars["hovertemplate"] = "%{x:.1%} %{y}"
    figure = figure_of(key, title, caption, data, _measured(arms), "")
    figure["layout"] |= {"height": 120 + 20 * len(names)}
    figure["layout"]["yaxis"] |= {"type": "category", "range": [len(names) - 0.4, -0.6], "dtick": 1}
    return figure


_FEW = 10
"""Maximum number of groups that are shown as bars."""
_LEVELS = ("easy", "medium", "hard", "extra")


def tokens(arms: Arms, column: str, title: str) -> Figure:
    """Plot a histogram of tokens per rollout in the last validation."""
    import numpy as np

    values = {
        arm: [value for run in runs for value in _ended(run, column)] for arm, runs in arms.items()
    }
    everything = [value for found in values.values() for value in found]
    if not everything:
        return figure_of(column, title, "", [], "", "")
    edges = np.histogram_bin_edges(everything, bins=min(30, max(5, len(set(everything)))))
    centres = ((edges[1:] + edges[:-1]) / 2).tolist()
    data: list[Figure] = []
    for index, (arm, found) in enumerate(values.items()):
        if found:
            share = (np.histogram(found, edges)[0] / len(found)).tolist()
            line = {"shape": "hvh", "color": colour_of(index), "width": 2, "dash": dash_of(index)}
            data.append(
                trace_of(arm, "lines", centres, share, "%{y:.1%} about %{x:.0f} tokens")
                | {"line": line}
            )
    caption = f"Share of rollouts by tokens over all their calls, in the {_last(arms)}."
    return figure_of(
        column.replace("_", "-"), title, caption, data, "tokens", "share of rollouts", percent=True
    )


def failures(figures: Mapping[str, list[Figures]]) -> Figure:
    """Plot rollouts of the whole run without a score, and answers that did not execute."""
    causes = dict.fromkeys(
        cause for runs in figures.values() for run in runs for cause in run["failures"]
    )
    names = [cause.replace("_", " ") for cause in causes]
    data = [
        bar_of(
            arm,
            index,
            names,
            [sum(run["failures"].get(cause, 0) for run in runs) for cause in causes],
        )
        for index, (arm, runs) in enumerate(figures.items() if causes else ())
    ]
    for one in data:
        # Bars are horizontal, so that their thickness stays the same with one type and one arm.
        one |= {"orientation": "h", "x": one["y"], "y": one["x"]}
        one["hovertemplate"] = "%{x} rollouts: %{y}"
    caption = (
        "All rollouts of all seeds. Answer fails: scored as wrong. "
        "All others are unscored, never zero."
    )
    figure = figure_of("failures", "Failures by type", caption, data, "rollouts", "")
    figure["layout"] |= {"height": 130 + len(names) * (16 + 16 * len(data)) + 12 * len(data)}
    figure["layout"]["yaxis"] |= {"type": "category", "autorange": "reversed"}
    return figure


def _ended(run: Run, column: str) -> list[Any]:
    """Return a column for the rollouts of the last validation that ended normally."""
    rows = run.validation()
    return list(rows.filter(outcome="ok")[column])

"""The figures of a report as plotly JSON. The page applies the colours of its theme."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from harness.compare.scores import span_of
from harness_report.arms import Arms, all_runs, graded_of, measured_of, several_in
from harness_report.figures import (
    Curves,
    Figure,
    banded,
    by_step,
    colour_of,
    figure_of,
    means_of,
    scaled,
    trace_of,
    values_by_step,
)
from harness_report.outcome_charts import (
    by_group,
    by_role,
    failures,
    rewrites,
    tokens,
    turns,
)

if TYPE_CHECKING:
    from harness.compare.keys import Comparison, Figures
    from harness.runs.reading import Run

PARTS = {"rollout": "#2a7de1", "update": "#e07b00", "weights": "#1a9c6b", "other": "#8d99a6"}


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
        by_group(arms, "difficulty", f"{measured_of(arms).capitalize()} by difficulty"),
        tokens(arms, "prompt_tokens", "Prompt tokens of a rollout"),
        tokens(arms, "response_tokens", "Response tokens of a rollout"),
        failures(figures),
        by_group(arms, "cluster", f"{measured_of(arms).capitalize()} by cluster"),
    ]
    runs = all_runs(arms)
    span = span_of(runs) if runs else (0.0, 1.0)
    graded = graded_of(arms)
    shown: list[Figure] = []
    for figure in made:
        # What no run has measured is left out: an empty chart would look like a fault of the page.
        if figure["data"]:
            shown.append(scaled(figure, span, graded))
    return shown


def validation_curve(arms: Arms) -> Figure:
    """Plot the mean over seeds with their range as a band, and a ring for a running validation."""
    trained: dict[str, list[Run]] = {}
    curves: dict[str, list[dict[int, float]]] = {}
    for arm, runs in arms.items():
        trained[arm] = [run for run in runs if run.trained]
        curves[arm] = [run.val_curve() for run in trained[arm]]
    asked = max((run.validated_tasks() for run in all_runs(trained)), default=0)
    caption = f"Of {asked} questions."
    if several_in(trained):
        caption = (
            f"Mean over seeds, of {asked} questions; "
            "the band reaches from the worst to the best seed."
        )
    figure = by_step(
        "validation", f"Validation {measured_of(arms)}", caption, measured_of(arms), curves
    )
    for index, (arm, own_runs) in enumerate(trained.items()):
        for run in own_runs:
            now = run.progress
            if now.validating is None or now.val_so_far is None:
                continue
            # A mean of the quick questions is no point of the curve, hence a ring of its own.
            label = f"%{{y:.1%}} so far, {now.done} of {now.expected}"
            ring = {
                "size": 10,
                "symbol": "circle-open",
                "color": colour_of(index),
                "line": {"width": 2},
            }
            trace = trace_of(arm, "markers", [now.validating], [now.val_so_far], label)
            figure["data"].append(trace | {"marker": ring, "legendgroup": arm, "showlegend": False})
    return figure


def training_curve(arms: Arms) -> Figure:
    """Plot every step's mean reward: as points if a line shows the mean of every k steps, else as the line."""
    data: list[Figure] = []
    window = 1
    for index, (arm, runs) in enumerate(arms.items()):
        rewards = values_by_step(run.logged("rollout/reward") for run in runs)
        if not rewards:
            continue
        # Rewards of single steps jump with their questions. A mean over an eighth of the training
        # shows the trend, and is drawn at its end, where it is known.
        steps = list(rewards)
        window = max(1, len(steps) // 8)
        means = means_of(rewards.values())
        if window > 1:
            points = trace_of(arm, "markers", steps, means, "%{y:.1%} at step %{x}")
            marker = {"size": 4, "color": colour_of(index), "opacity": 0.4}
            data.append(points | {"legendgroup": arm, "showlegend": False, "marker": marker})
        ends: list[int] = []
        chunks: list[list[float]] = []
        for start in range(0, len(steps), window):
            ends.append(steps[start : start + window][-1])
            chunks.append(means[start : start + window])
        data += banded(arm, index, ends, chunks, band=False)
    seeds = " over seeds" * several_in(arms)
    caption = f"Mean reward of each step{seeds}. Sampled, not greedy."
    if window > 1:
        caption = (
            f"Points: mean reward of one step{seeds}. "
            f"Line: mean of every {window} steps. Sampled, not greedy."
        )
    return figure_of("training", "Training reward", caption, data, "step", "reward", percent=True)


def signal(figures: Mapping[str, list[Figures]]) -> Figure:
    """Plot the share of each step's groups with a training signal, as a mean over seeds."""
    caption = (
        "Groups of rollouts of one task in which rewards differ, "
        "or with train.algorithm=rejection one that is trained "
        "on; others give no gradient."
    )
    if several_in(figures):
        caption += " Mean over seeds, the band reaches from the least to the most."
    shares: dict[str, list[dict[int, float]]] = {}
    for arm, runs in figures.items():
        shares[arm] = [run["signal_by_step"] for run in runs]
    return by_step("signal", "Groups with signal", caption, "share of groups", shares)


def logged(arms: Arms) -> list[Figure]:
    """Plot what a trainer logs of the policy and the cost of rollouts, if it is logged."""
    length = (
        "Tokens that the policy wrote in a training rollout, over all its calls; mean of the step."
    )
    speeds: dict[str, list[dict[int, float]]] = {}
    for arm, runs in arms.items():
        speeds[arm] = list(map(_tokens_per_s, runs))
    speed = (
        "Tokens that the policy wrote in a step's training rollouts, "
        "by the seconds that these took."
    )
    lengths = _logged(arms, "rollout/response_tokens_per_rollout")
    return [
        by_step(
            "entropy",
            "Entropy",
            "Of the policy, mean over trained tokens.",
            "nats a token",
            _logged(arms, "entropy"),
            ".3f",
        ),
        _clipped(_logged(arms, "clipped"), _logged(arms, "cut")),
        by_step("lengths", "Response length", length, "tokens a rollout", lengths, ".1f"),
        by_step("speed", "Tokens per second", speed, "tokens/s", speeds, ",.0f"),
    ]


def _logged(arms: Arms, measure: str) -> Curves:
    """Return a measure of every run, by arm."""
    curves: dict[str, list[dict[int, float]]] = {}
    for arm, runs in arms.items():
        curves[arm] = [run.logged(measure) for run in runs]
    return curves


def _clipped(clipped: Curves, cut: Curves) -> Figure:
    """Plot the share of tokens with a clipped update, and dotted that of replies cut short."""
    caption = (
        "Tokens with a clipped update, by the bound on the ratio of probabilities. "
        "Dotted: replies cut at the token limit."
    )
    figure = by_step("clipped", "Clipped share", caption, "share", clipped, ".2%")
    for trace in by_step("cut", "", "", "", cut, ".2%")["data"]:
        dotted = trace["line"] | {"dash": "dot"}
        figure["data"].append(trace | {"showlegend": False, "line": dotted})
    if not figure["data"]:
        return figure
    highest, dotted_lines = 0.0, False
    for trace in figure["data"]:
        highest = max(highest, *trace["y"])
        dotted_lines = dotted_lines or trace["line"].get("dash") == "dot"
    # The legend has one entry an arm, which does not explain the style.
    if dotted_lines:
        figure["data"].append(_legend_entry("dotted: replies cut", "dot"))
    figure["layout"]["yaxis"]["tickformat"] = ".2~%"
    # If no token is clipped, the axis ends at 1 %: a whole axis would show nothing.
    if highest < 0.001:
        figure["layout"]["yaxis"]["range"] = [0, 0.01]
    return figure


def _legend_entry(name: str, dash: str) -> Figure:
    """Return a trace without points, which explains a style of lines in the legend."""
    entry = trace_of(name, "lines", [None], [None], "")
    return entry | {"line": {"color": "#8d99a6", "width": 2.5, "dash": dash}}


def _tokens_per_s(run: Run) -> dict[int, float]:
    names = ("rollout/response_tokens_per_rollout", "rollout/rollouts", "rollout_s")
    tokens, rollouts, seconds = map(run.logged, names)
    speeds: dict[int, float] = {}
    for step, spent in seconds.items():
        if step in tokens and step in rollouts and spent:
            speeds[step] = tokens[step] * rollouts[step] / spent
    return speeds


def differences(comparison: Comparison | None) -> Figure:
    """Plot final accuracy against the baseline, with intervals and the margin."""
    pairs = comparison["pairs"] if comparison else []
    data = [_dots(comparison)] if comparison and pairs else []
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


def _dots(comparison: Comparison) -> Figure:
    """Return a dot with its interval for every pair, in the colours of the arms."""
    # The baseline has no dot but keeps its colour, so that colours are those of the other charts.
    colours: dict[str, str] = {}
    for index, arm in enumerate(comparison["arms"]):
        colours[arm["name"]] = colour_of(index)
    ends: Figure = {"type": "data", "symmetric": False, "thickness": 2, "width": 6}
    ends |= {"array": [], "arrayminus": []}
    dots: Figure = {"type": "scatter", "mode": "markers", "error_x": ends, "showlegend": False}
    dots |= {"x": [], "y": [], "marker": {"size": 11, "color": []}, "text": []}
    # plotly draws the first category at the bottom, tables have the first arm at the top.
    for pair in reversed(comparison["pairs"]):
        difference = pair["difference"]
        ends["array"].append(100 * (difference["high"] - difference["mean"]))
        ends["arrayminus"].append(100 * (difference["mean"] - difference["low"]))
        dots["x"].append(100 * difference["mean"])
        dots["y"].append(pair["arm"])
        dots["marker"]["color"].append(colours[pair["arm"]])
        dots["text"].append(pair["verdict"])
    return dots | {"hovertemplate": "%{y}: %{x:+.1f} points, %{text}<extra></extra>"}


def cost_split(figures: Mapping[str, list[Figures]]) -> Figure:
    """Plot seconds of a step by part."""
    rows: dict[str, dict[str, float]] = {}
    for arm, runs in figures.items():
        seconds: dict[str, list[float]] = {}
        for run in runs:
            # A run without a finished step has no median of them.
            if run["step_s"] is None:
                continue
            for part in PARTS:
                seconds.setdefault(part, []).append(run["step_s"] * run["shares"].get(part, 0.0))
        if seconds:
            rows[arm] = dict(zip(seconds, means_of(seconds.values()), strict=True))
    names = list(reversed(rows))
    data: list[Figure] = []
    for part, colour in PARTS.items() if rows else ():
        data.append(
            {
                "type": "bar",
                "orientation": "h",
                "name": part,
                "y": names,
                "x": [rows[arm][part] for arm in names],
                "marker": {"color": colour},
                "hovertemplate": "%{x:.2f} s " + part + "<extra>%{y}</extra>",
            }
        )
    caption = (
        "Seconds of a median step: rollouts, actor update with log-probabilities, "
        "weight transfer, the rest."
    )
    figure = figure_of("cost", "Where a step's time goes", caption, data, "seconds a step", "")
    figure["layout"] |= {"barmode": "stack", "height": 150 + 40 * len(rows)}
    figure["layout"]["yaxis"] |= {"type": "category"}
    return figure

"""Elements of figures as plotly JSON: axes, lines with bands, bars and colours of arms."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

COLOURS = ("#2a7de1", "#e07b00", "#1a9c6b", "#c2479b", "#8a6fe8", "#b5a000", "#d6483e", "#3aa5b8")
"""One colour per arm, in order: distinct for colour-blind readers, legible on white and black."""


DASHES = ("solid", "dash", "dot", "dashdot")


Figure = dict[str, Any]


Curves = Mapping[str, Sequence[Mapping[int, float]]]
"""Values by step of every run of an arm."""


def scaled(figure: Figure, span: tuple[float, float], graded: bool) -> Figure:
    """Set axes of accuracy or reward to the full range, in percent unless graded."""
    low, high = span
    # Room on both sides of a vertical scale would suggest rewards below the lowest one.
    room = 0.04 * (high - low)
    for axis, letter in (("xaxis", "x"), ("yaxis", "y")):
        if figure["layout"][axis]["title"]["text"] not in ("accuracy", "mean reward", "reward"):
            continue
        start = low - room if letter == "x" else low
        figure["layout"][axis]["range"] = [start, high + room]
        figure["layout"][axis]["tickformat"] = ".2f" if graded else ".0%"
        for trace in figure["data"]:
            if graded and "hovertemplate" in trace:
                trace["hovertemplate"] = trace["hovertemplate"].replace(
                    f"%{{{letter}:.1%}}", f"%{{{letter}:.3f}}"
                )
    return figure


def by_step(
    key: str, title: str, caption: str, y: str, curves: Curves, form: str = ".1%"
) -> Figure:
    """Return means of an arm's runs by step, with the range of its runs as a band.

    Args:
        form: Format of a value, in d3's syntax.
    """
    data: list[Figure] = []
    for index, (arm, runs) in enumerate(curves.items()):
        values = values_by_step(runs)
        if values:
            data += banded(arm, index, list(values), list(values.values()), form=form)
    return figure_of(key, title, caption, data, "step", y, percent=form.endswith("%"))


def values_by_step(curves: Iterable[Mapping[int, float]]) -> dict[int, list[float]]:
    """Return the values of several runs by step, in the order of steps."""
    by_step: dict[int, list[float]] = {}
    # Runs may have been validated at different steps: each step has the runs that it has.
    for curve in curves:
        for step, value in curve.items():
            by_step.setdefault(step, []).append(value)
    return dict(sorted(by_step.items()))


def means_of(values: Iterable[Sequence[float]]) -> list[float]:
    """Return the mean over the runs at each place."""
    return [sum(of_runs) / len(of_runs) for of_runs in values]


def banded(
    arm: str,
    index: int,
    x: Sequence[float],
    values: Sequence[Sequence[float]],
    *,
    band: bool = True,
    form: str = ".1%",
) -> list[Figure]:
    """Return means over several runs at each place as a line, and their range as a band."""
    means = means_of(values)
    mode = "lines+markers" if band or len(x) == 1 else "lines"
    line = trace_of(arm, mode, x, means, f"%{{y:{form}}} at step %{{x}}") | {"legendgroup": arm}
    line |= {"line": {"color": colour_of(index), "width": 2.5, "dash": dash_of(index)}}
    line |= {"marker": {"size": 6 if len(x) > 1 else 10}}
    if not band or max(map(len, values)) < 2:
        return [line]
    # One closed outline: along the largest values and back along the smallest. Two lines with a
    # fill between them would join over steps that one of them lacks.
    ends = [*map(max, values), *map(min, reversed(values))]
    outline: Figure = {
        "type": "scatter",
        "mode": "lines",
        "x": [*x, *reversed(x)],
        "y": ends,
        "line": {"width": 0},
    }
    filled = {"fill": "toself", "fillcolor": colour_of(index) + "26", "legendgroup": arm}
    return [outline | filled | {"showlegend": False, "hoverinfo": "skip"}, line]


def trace_of(
    arm: str, mode: str, x: Iterable[float | None], y: Sequence[float | None], hover: str
) -> Figure:
    """Return a line, or points, of one arm."""
    return {
        "type": "scatter",
        "mode": mode,
        "x": list(x),
        "y": list(y),
        "name": arm,
        "hovertemplate": hover,
    }


def bar_of(arm: str, index: int, x: Sequence[str], y: Sequence[float | None]) -> Figure:
    """Return the bars of one arm."""
    bar: Figure = {"type": "bar", "name": arm, "x": list(x), "y": list(y)}
    return bar | {"marker": {"color": colour_of(index)}, "hovertemplate": "%{y:.1%} %{x}"}


def figure_of(
    key: str,
    title: str,
    caption: str,
    data: list[Figure],
    x: str,
    y: str,
    *,
    percent: bool = False,
    categories: bool = False,
) -> Figure:
    """Return a whole figure: traces with title, caption and axes."""
    layout: Figure = {
        "xaxis": {"title": {"text": x}},
        "yaxis": {"title": {"text": y}},
        "barmode": "group",
    }
    if x == "step":
        steps: list[float] = []
        for trace in data:
            steps += trace["x"]
        first, last = min(steps, default=0), max(steps, default=0)
        room = max(0.3, 0.03 * (last - first))
        layout["xaxis"]["range"] = [first - room, last + room]
        # plotly would put ticks between the steps of a short training.
        if last - first <= 10:
            layout["xaxis"]["dtick"] = 1
    if percent:
        layout["yaxis"] |= {"tickformat": ".0%", "rangemode": "tozero"}
    if categories:
        layout["xaxis"] |= {"type": "category"}
    return {"id": key, "title": title, "caption": caption, "data": data, "layout": layout}


def colour_of(index: int) -> str:
    """Return the colour of an arm."""
    return COLOURS[index % len(COLOURS)]


def dash_of(index: int) -> str:
    """Return the dash style of an arm, which distinguishes arms of the same colour."""
    return DASHES[index // len(COLOURS) % len(DASHES)] if index >= len(COLOURS) else "solid"

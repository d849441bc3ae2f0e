"""Draw the curves of `cpu/`, `studies/` and `gpu-spider/` from their records: `tools/plot.py`.

Needs a Chromium to rasterise.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import plotly.graph_objects as go
import polars as pl
from PIL import Image
from plotly.subplots import make_subplots
from table import by_at, by_pass, result_of, rewards, unpacked

from harness.compare.answers import has_no_result
from harness.compare.selection import select
from harness.compare.states import PACKED
from harness.runs.folder import RunFolder
from harness.runs.reading import Run
from harness.runs.schema import RunRecord

HERE = Path(__file__).resolve().parents[1] / "results"
REFERENCES = HERE.parent / "harness" / "compare" / "references.json"
"""Results published by others."""
COLOURS = {
    "langgraph_sql write": "#1f5fbf",
    "langgraph_sql write|check": "#1b9e77",
    "autogen_sql write": "#d95f02",
    "autogen_sql write|check": "#a6761d",
    "shuffled rewards (control)": "#777777",
}
ARMS_OF_PROBE = {
    "probe_roles": {
        "all roles": "trained: all roles",
        "write and rewrite": "trained: write and rewrite",
        "first query only": "trained: the first query only",
        "check only": "trained: the check only",
    },
    "probe_credit": {
        "credit=role": "all roles, credit by role",
        "credit=turn": "all roles, credit by turn",
    },
    "probe_turns": {"two turns": "two turns", "one turn": "one turn"},
    "probe_worth": {
        "rejection": "rejection fine-tuning",
        "grpo, rewards shuffled": "shuffled rewards (control)",
    },
}
"""Labels of the packed studies' arms in the picture."""
SCAFFOLDS = {
    "reference_sql": "shared prompts",
    "autogen_sql_idiomatic": "AutoGen's own",
    "openai_agents_sql_idiomatic": "OpenAI's own",
}
MIXED = {
    "langgraph_sql_idiomatic": "LangGraph",
    "autogen_sql_idiomatic": "AutoGen",
    "reference_sql": "reference",
}
"""Agents of the study of one policy for several, the last one on top."""
SPENT = ("rollout/response_tokens_per_rollout", "rollout/rollouts")
"""Columns of steps with the tokens of a step's rollouts as their product."""
RIGHT = "right answers on databases never trained on, %"
BEST_QUERY = 37.7
"""Right answers on `dev` of the best draft without a look, in %.

Source: `python -m recipes.pocket_probe.oracle`.
"""
COLOURS_OF_FIVE = ("#1f5fbf", "#1b9e77", "#d95f02", "#8e63b5", "#222222")
COLOURS_OF_SIX = ("#c2185b", *COLOURS_OF_FIVE)


def records(folder: Path) -> Iterator[tuple[Path, RunRecord]]:
    """Return the runs of a folder, by name."""
    for path in sorted(folder.glob("*/run.json")):
        yield path.parent, RunFolder.open(path.parent).read()


def cpu() -> go.Figure:
    """Plot validation accuracy by step."""
    figure = go.Figure()
    for _, record in records(HERE / "cpu"):
        curve = {int(step): value for step, value in result_of(record)["val_curve"].items()}
        control = record["identity"]["reward_shuffled"]
        name = "shuffled rewards (control)" if control else f"seed {record['seed']}"
        line(figure, curve, name, "dot" if control else "solid")
    figure.update_layout(
        title="GRPO on a CPU through LangGraph: 240 questions, unseen databases",
        xaxis_title="GRPO step (16 tasks x 4 rollouts)",
        yaxis={"title": "validation accuracy, %", "range": [40, 101]},
    )
    return figure


def spider() -> go.Figure:
    """Plot reward by pass over the training questions: one colour an arm, shorter seeds dashed."""
    figure = go.Figure()
    shown = set()
    packed = Path(unpacked(HERE / "gpu-spider" / PACKED).name)
    for folder in (packed / "first", packed / "seeds"):
        for run, record in records(folder):
            control = record["identity"]["reward_shuffled"]
            arm = (
                "shuffled rewards (control)"
                if control
                else f"{record['agent']} {record['agent_match']}"
            )
            curve = by_at(by_pass(rewards(run), record))
            dash = "dot" if control else "dash" if folder.name == "seeds" else "solid"
            line(figure, curve, arm, dash, colour=COLOURS[arm], legend=arm not in shown)
            shown.add(arm)
    figure.update_layout(
        title="GRPO on an H200: 256 Spider questions a seed, 27 million parameters",
        xaxis={"title": "pass over the questions (8 steps of 32 tasks x 8 rollouts)", "dtick": 1},
        yaxis={"title": "right answers, sampled, %", "rangemode": "tozero"},
    )
    return figure


def five() -> go.Figure:
    """Plot gradient norm and validation accuracy of five agents, seed 0; curves may overlap."""
    figure = make_subplots(1, 2, subplot_titles=("norm of the gradient", "validation accuracy, %"))
    runs = [
        (run, record)
        for run, record in records(HERE / "studies" / "frameworks")
        if record["seed"] == 0
    ]
    for place, (run, record) in enumerate(runs):
        norms = pl.read_parquet(run / "steps.parquet").drop_nulls("gradient_norm")
        validated = {
            int(step): 100 * value for step, value in result_of(record)["val_curve"].items()
        }
        look: dict[str, Any] = {
            "name": record["agent"],
            "mode": "lines+markers",
            "line_color": COLOURS_OF_FIVE[place],
        }
        size = 24 - 5 * place  # so that all five are seen where they coincide
        look |= {
            "marker": {"size": size, "symbol": "circle-open" if place < 4 else "circle"},
            "line_width": 1,
        }
        figure.add_scatter(x=norms["step"], y=norms["gradient_norm"], row=1, col=1, **look)
        figure.add_scatter(
            x=list(validated), y=list(validated.values()), row=1, col=2, showlegend=False, **look
        )
    figure.update_layout(title="Five agents, seed 0, 20 steps on a CPU: one curve")
    figure.update_xaxes(title="GRPO step")
    return figure


def probe() -> go.Figure:
    """Plot accuracy after the last step, a dot a training, by arm; studies share the baseline."""
    found: dict[str, list[float]] = {}
    for study, arms in ARMS_OF_PROBE.items():
        for arm, values in finals("pocket-probe", study).items():
            if arm in arms:
                found.setdefault(arms[arm], []).extend(values)
    figure = go.Figure()
    for arm, values in reversed(found.items()):
        dots(figure, arm, values, colour="#777777" if "shuffled" in arm else "#1f5fbf")
    figure.add_vline(x=BEST_QUERY, line={"dash": "dot", "color": "#777777"})
    figure.update_layout(
        title="20 steps of GRPO on pocket_probe, eight trainings an arm; "
        "dotted: the best single query",
        xaxis={"title": RIGHT, "range": [10, 95]},
        yaxis={"tickfont": {"size": 13}},
        margin={"l": 250},
    )
    return figure


def scaffolds() -> go.Figure:
    """Plot what each scaffold learns, a dot a training, and each policy in the others, a matrix."""
    titles = ("eight trainings each", "in another scaffold (means of three)")
    figure = make_subplots(
        1, 2, subplot_titles=titles, column_widths=[0.52, 0.48], horizontal_spacing=0.16
    )
    found = finals("pocket-probe-scaffolds", "probe_scaffolding")
    for agent, name in reversed(SCAFFOLDS.items()):
        dots(figure, name, found[agent], colour="#1f5fbf", row=1, col=1)
    cells = finals("pocket-probe-scaffolds", "probe_transfer")
    matrix(figure, cells, SCAFFOLDS, SCAFFOLDS, row=1, col=2)
    figure.update_xaxes(title=RIGHT, range=[10, 95], row=1, col=1)
    figure.update_xaxes(title="evaluated in", row=1, col=2)
    figure.update_yaxes(title="trained in", title_standoff=4, row=1, col=2)
    figure.update_layout(
        title="20 steps of GRPO on pocket_probe in three scaffolds", margin={"l": 130}
    )
    return figure


OWN_WAYS = {
    "reference_sql": "shared prompts",
    "autogen_sql_idiomatic": "AutoGen",
    "crewai_sql_idiomatic": "CrewAI",
    "openai_agents_sql_idiomatic": "OpenAI SDK, tool calls",
    "langgraph_sql_idiomatic": "LangGraph, tool calls",
    "agent_framework_sql_idiomatic": "Agent Framework, tool calls",
}


def own_ways() -> go.Figure:
    """Plot learning in frameworks' own scaffolds: before and after, and means during training."""
    titles = ("grey: before; blue: after 20 steps", "on the way, means")
    figure = make_subplots(
        1, 2, subplot_titles=titles, column_widths=[0.58, 0.42], horizontal_spacing=0.1
    )
    runs = packed("scaffolds", "probe_scaffolding")
    for place, (agent, name) in enumerate(reversed(OWN_WAYS.items())):
        curves = [result_of(run.record)["val_curve"] for run in runs if run.arm == agent]
        values = [[100 * value for value in curve.values()] for curve in curves]
        both_ends(figure, name, values, row=1, col=1)
        means = [fmean(one) for one in zip(*values, strict=True)]
        look = {"mode": "lines+markers", "line_color": COLOURS_OF_SIX[place], "name": name}
        figure.add_scatter(
            x=[int(step) for step in curves[0]], y=means, row=1, col=2, showlegend=False, **look
        )
    figure.update_xaxes(title=RIGHT, range=[10, 90], row=1, col=1)
    figure.update_xaxes(title="step", tickvals=[0, 10, 20], row=1, col=2)
    figure.update_yaxes(range=[10, 90], row=1, col=2)
    figure.add_annotation(x=14, y=28, text="tool calls", showarrow=False, row=1, col=2)
    figure.add_annotation(x=14, y=84, text="text, with a check", showarrow=False, row=1, col=2)
    figure.update_layout(
        title="pocket_probe: agents written as their frameworks' users would", margin={"l": 215}
    )
    return figure


def transfer() -> go.Figure:
    """Plot policies' accuracy in other scaffolds than their own, means of eight trainings."""
    cells = finals("scaffolds", "probe_transfer")
    used = {agent: name for agent, name in OWN_WAYS.items() if f"reference_sql -> {agent}" in cells}
    trained = {agent: name for agent, name in used.items() if f"{agent} -> {agent}" in cells}
    figure = go.Figure()
    matrix(figure, cells, trained, used)
    figure.update_xaxes(title="used in", tickangle=20)
    figure.update_yaxes(title="trained in", title_standoff=4)
    figure.update_layout(
        title="right answers, %, means of eight trainings", margin={"l": 215, "b": 110}
    )
    return figure


def mixture() -> go.Figure:
    """Plot each policy in three agents, a dot a training."""
    cells = finals("qwen-mixture", "qwen_mixture")
    figure = make_subplots(
        rows=1,
        cols=len(MIXED),
        shared_yaxes=True,
        subplot_titles=[f"used in {name}" for name in reversed(MIXED.values())],
        horizontal_spacing=0.03,
    )
    trained_in = {**MIXED, "mixture": "all three"}
    for column, agent in enumerate(reversed(MIXED), 1):
        for trained, label in trained_in.items():
            own = trained == agent
            dots(
                figure,
                label,
                cells[f"{trained} -> {agent}"],
                "#d65f2a" if own else "#1f5fbf",
                row=1,
                col=column,
            )
    figure.update_xaxes(range=[25, 55], title="right answers, %", dtick=10)
    figure.update_yaxes(title="trained in", title_standoff=4, row=1, col=1)
    figure.update_layout(
        title="Qwen2.5-Coder-0.5B, a dot per policy; orange: trained in this agent alone",
        height=360,
        margin={"l": 110},
    )
    return figure


def matrix(
    figure: go.Figure,
    cells: dict[str, list[float]],
    trained: dict[str, str],
    used: dict[str, str],
    **place: int,
) -> None:
    """Plot means by training scaffold (rows) and scaffold of use (columns)."""
    figure.add_heatmap(
        z=[[fmean(cells[f"{row} -> {column}"]) for column in used] for row in reversed(trained)],
        x=list(used.values()),
        y=list(trained.values())[::-1],
        texttemplate="%{z:.0f}",
        colorscale=[[0, "#ffffff"], [1, "#1f5fbf"]],
        zmin=0,
        zmax=100,
        showscale=False,
        **place,
    )


def teams() -> go.Figure:
    """Compare one agent and teams: accuracy before, after and during training, by tokens."""
    titles = ("grey: before; blue: after 12 steps", "on the way, means of eight trainings")
    figure = make_subplots(
        1, 2, subplot_titles=titles, column_widths=[0.5, 0.5], horizontal_spacing=0.1
    )
    ways: dict[str, list[list[tuple[float, float]]]] = {}
    for run in packed("teams", "teams"):
        steps = pl.read_parquet(run.folder.path / "steps.parquet").sort("step")
        spent = steps.select(
            pl.col("step"), pl.col(SPENT[0]).mul(pl.col(SPENT[1])).fill_null(0).cum_sum()
        )
        at = dict(spent.rows())
        curve = {
            int(step): 100 * value for step, value in result_of(run.record)["val_curve"].items()
        }
        ways.setdefault(run.arm, []).append(
            [(at.get(step, 0.0) / 1000, value) for step, value in curve.items()]
        )
    for place, arm in enumerate(sorted(ways, key="alone".__ne__, reverse=True)):
        both_ends(figure, arm, [[value for _, value in way] for way in ways[arm]], row=1, col=1)
        means = [
            [fmean(one) for one in zip(*points, strict=True)]
            for points in zip(*ways[arm], strict=True)
        ]
        look = {"mode": "lines+markers", "line_color": COLOURS_OF_FIVE[place % 5], "name": arm}
        figure.add_scatter(
            x=[x for x, _ in means], y=[y for _, y in means], row=1, col=2, showlegend=False, **look
        )
        if arm in ("alone", "strict team"):
            figure.add_annotation(
                x=means[-1][0], y=means[-1][1], text=arm, yshift=14, showarrow=False, row=1, col=2
            )
    figure.update_xaxes(title="right answers, %", range=[80, 101], row=1, col=1)
    figure.update_xaxes(
        title="generated in training, thousand tokens", rangemode="tozero", row=1, col=2
    )
    figure.update_yaxes(range=[80, 102], row=1, col=2)
    figure.update_layout(
        title="pocket_split: one agent with all tools, and teams", margin={"l": 220}
    )
    return figure


MEMBERS = (
    "rewards shuffled",
    "workers only",
    "planner only",
    "planner and workers",
    "credit by turn",
)
"""Arms of both studies of a team's members."""


def members(folder: str, studies: Sequence[str], arms: Sequence[str]) -> go.Figure:
    """Plot accuracy before and after by trained members of a team, a dot a training."""
    runs = {run.id: run for study in studies for run in packed(folder, study)}
    figure = go.Figure()
    for arm in arms:
        curves = [result_of(run.record)["val_curve"] for run in runs.values() if run.arm == arm]
        both_ends(figure, arm, [[100 * value for value in curve.values()] for curve in curves])
    figure.update_xaxes(
        title="right answers, %; grey: before; blue: after training", range=[20, 101]
    )
    figure.update_layout(
        title="pocket_split: which members of a team are trained", margin={"l": 260}
    )
    return figure


PUBLISHED_ARMS = {
    "write and rewrite": ("Qwen2.5-Coder-1.5B, write", "#1f5fbf"),
    "all roles": ("Qwen2.5-Coder-1.5B, all roles", "#d95f02"),
}
"""The literature's row for each curve of the published run, and the colour of both."""


def published() -> go.Figure:
    """Plot validation accuracy by step: the published run made here, and the literature's."""
    titles = ("the first 64 steps", "the literature's 436 steps")
    figure = make_subplots(1, 2, subplot_titles=titles, horizontal_spacing=0.08)
    references = json.loads(REFERENCES.read_text(encoding="utf-8"))["rows"]
    curves = {row["label"]: row["curve"] for row in references if "curve" in row}
    runs = packed("qwen-published", "qwen_published")
    for arm, (label, colour) in PUBLISHED_ARMS.items():
        # A training that was cut off has no result, and no last validation.
        finished = [run for run in runs if run.arm == arm and run.record["result"]]
        for column in (1, 2):
            for number, run in enumerate(finished):
                curve = result_of(run.record)["val_curve"]
                figure.add_scatter(
                    x=[int(step) for step in curve],
                    y=[100 * value for value in curve.values()],
                    name=f"{arm}: here, 500 questions of dev, {len(finished)} seeds",
                    mode="lines+markers",
                    line={"color": colour, "width": 2},
                    showlegend=column == 1 and number == 0,
                    row=1,
                    col=column,
                )
            figure.add_scatter(
                x=curves[label]["steps"],
                y=[100 * value for value in curves[label]["accuracies"]],
                name=f"{arm}: literature, 500 other questions (test)",
                mode="lines+markers",
                line={"color": colour, "width": 2, "dash": "dot"},
                marker={"symbol": "circle-open"},
                showlegend=column == 1,
                row=1,
                col=column,
            )
    figure.update_xaxes(title="GRPO step (32 tasks x 4 rollouts)", range=[-2, 66], row=1, col=1)
    figure.update_xaxes(title="GRPO step", range=[-8, 444], row=1, col=2)
    figure.update_yaxes(title="validation accuracy, %", range=[30, 80], row=1, col=1)
    figure.update_yaxes(range=[30, 80], row=1, col=2)
    figure.update_layout(
        title="Qwen2.5-Coder-1.5B on Spider; dotted: published, on other questions",
        legend={"orientation": "h", "y": -0.24},
    )
    return figure


QWEN_ROLES = {
    "agent_framework_sql_idiomatic": "Agent Framework, idiomatic",
    "openai_agents_sql_idiomatic": "OpenAI Agents, idiomatic",
    "langgraph_sql_idiomatic": "LangGraph, idiomatic",
    "crewai_sql_idiomatic": "CrewAI, idiomatic",
    "autogen_sql_idiomatic": "AutoGen, idiomatic",
    "all roles": "all roles",
    "check only": "check only",
    "first query only": "first query only",
    "write and rewrite": "write and rewrite",
}
"""Arms of the studies of scaffolds and roles with the 0.5B model, the last one on top."""
QWEN_WORTH = {
    "supervised, one query, at 1e-5": "supervised, one query, at 1e-5",
    "supervised, one query": "supervised, one query",
    "grpo, one query": "GRPO, one query",
    "grpo, rewards shuffled": "GRPO, rewards shuffled",
    "demonstrations": "demonstrations",
    "format only": "format only",
    "rejection": "rejection fine-tuning",
    "grpo": "GRPO",
}
"""Arms of the study of training methods with the 0.5B model, the last one on top."""
QWEN_CONFIRMATION = {
    "langgraph_sql_idiomatic": "LangGraph, idiomatic",
    "autogen_sql_idiomatic": "AutoGen, idiomatic",
    "write and rewrite": "write and rewrite",
    "all roles": "all roles",
}
"""Arms of the study of the 1.5B model, the last one on top."""
ANSWERS = {"right": "#1f5fbf", "runs, wrong": "#9ecae1", "fails": "#bbbbbb"}
"""What becomes of an answer, and its colour."""


def qwen(
    folder: str,
    studies: Sequence[str],
    labels: dict[str, str],
    *,
    title: str = "Qwen2.5-Coder-0.5B on Spider, 20 steps, eight trainings an arm",
    most: int = 55,
    height: int = 620,
) -> go.Figure:
    """Plot accuracy of a Qwen2.5-Coder model by arm, and how many answers fail, run and are right.

    Args:
        folder: Folder with packed studies.
        studies: Which of them.
        labels: Label of each arm, the last one on top.
        most: Right end of the axis of right answers, in %.
        height: Pixels.
    """
    titles = ("right answers, %; grey: before; blue: after", "answers before and after, %")
    figure = make_subplots(1, 2, subplot_titles=titles, horizontal_spacing=0.1)
    runs: dict[str, list[Run]] = {}
    for study in studies:
        for run in packed(folder, study):
            runs.setdefault(run.arm, []).append(run)
    bars: dict[str, list[float]] = {answer: [] for answer in ANSWERS}
    names: list[str] = []
    for arm, label in labels.items():
        curves = [list(result_of(run.record)["val_curve"].values()) for run in runs[arm]]
        percent = [[100 * value for value in curve] for curve in curves]
        both_ends(figure, label, percent, row=1, col=1)
        # The last row is drawn on top.
        for when, step in (("after", 20), ("before", 0)):
            answers = pl.concat([run.validation(step) for run in runs[arm]])
            answers = answers.drop_nulls("reward")
            right = fmean(answers["reward"])
            fails = fmean(has_no_result(answers))
            names.append(f"{label}, {when}")
            bars["right"].append(100 * right)
            bars["fails"].append(100 * fails)
            bars["runs, wrong"].append(100 * (1 - right - fails))
    for answer, values in bars.items():
        texts = [f"{value:.0f}" for value in values]
        figure.add_bar(
            x=values,
            y=names,
            name=answer,
            text=texts,
            textangle=0,
            orientation="h",
            marker={"color": ANSWERS[answer]},
            row=1,
            col=2,
        )
    figure.update_xaxes(range=[25, most], row=1, col=1)
    figure.update_xaxes(range=[0, 100], row=1, col=2)
    # The left panel names the arms, in the same order.
    ends = [name.rpartition(", ")[2] for name in names]
    figure.update_yaxes(tickvals=names, ticktext=ends, tickfont={"size": 12}, row=1, col=2)
    figure.update_layout(
        title=title,
        barmode="stack",
        height=height,
        legend={"orientation": "h", "x": 0.6, "y": -0.1, "traceorder": "normal"},
        margin={"l": 190},
    )
    return figure


def packed(folder: str, study: str) -> list[Run]:
    """Return the runs of a packed study."""
    return select([Path(unpacked(HERE / "studies" / folder / PACKED).name) / study]).runs


def finals(folder: str, study: str) -> dict[str, list[float]]:
    """Return final validation accuracies in % by arm, a training or an evaluation each.

    Args:
        folder: Folder with packed studies.
    """
    found: dict[str, list[float]] = {}
    for run in packed(folder, study):
        result = result_of(run.record)
        if (final := result.get("val_accuracy_final", result.get("accuracy"))) is not None:
            found.setdefault(run.arm, []).append(100 * final)
    return found


def both_ends(figure: go.Figure, name: str, curves: list[list[float]], **place: int) -> None:
    """Draw accuracy before (grey) and after (blue), a dot a training; label counts other than 8."""
    name = name if len(curves) == 8 else f"{name} ({len(curves)} seeds)"
    for end, colour in ((0, "#777777"), (-1, "#1f5fbf")):
        dots(figure, name, [curve[end] for curve in curves], colour, **place)


def dots(figure: go.Figure, name: str, values: list[float], colour: str, **place: int) -> None:
    """Draw a row of dots."""
    look = {"size": 11, "opacity": 0.55, "color": colour}
    figure.add_scatter(
        x=values, y=[name] * len(values), mode="markers", showlegend=False, marker=look, **place
    )


def line(
    figure: go.Figure,
    curve: dict[int, float],
    name: str,
    dash: str = "solid",
    colour: str | None = None,
    legend: bool = True,
) -> None:
    """Draw one run's curve of shares of 1, by step or pass."""
    figure.add_scatter(
        x=list(curve),
        y=[100 * value for value in curve.values()],
        mode="lines+markers",
        name=name,
        showlegend=legend,
        line={"dash": dash, "width": 3, "color": colour},
    )


def save(figure: go.Figure, target: Path) -> None:
    """Rasterise a figure, 460 pixels high unless its layout has another height."""
    height = figure.layout.height or 460
    figure.update_layout(template="plotly_white", width=900, height=height, font={"size": 15})
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "curve.html"
        figure.write_html(page, include_plotlyjs=True, config={"displayModeBar": False})
        browser = shutil.which("chromium") or shutil.which("google-chrome") or "chromium"
        subprocess.run(
            [
                *(browser, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"),
                *("--virtual-time-budget=4000", f"--window-size=916,{height + 16}"),
                *(f"--screenshot={target}", page.as_uri()),
            ],
            check=True,
            capture_output=True,
        )
    shrink(target)


def shrink(picture: Path) -> None:
    """Keep 64 colours, enough for lines and letters: a third of the size."""
    Image.open(picture).convert("RGB").quantize(64).save(picture, optimize=True)


if __name__ == "__main__":
    save(cpu(), HERE / "cpu" / "curve.png")
    save(five(), HERE / "studies" / "five.png")
    save(spider(), HERE / "gpu-spider" / "curve.png")
    save(probe(), HERE / "studies" / "pocket-probe" / "arms.png")
    save(scaffolds(), HERE / "studies" / "pocket-probe-scaffolds" / "scaffolds.png")
    save(own_ways(), HERE / "studies" / "scaffolds" / "scaffolds.png")
    save(transfer(), HERE / "studies" / "scaffolds" / "transfer.png")
    save(teams(), HERE / "studies" / "teams" / "teams.png")
    save(published(), HERE / "studies" / "qwen-published" / "curves.png")
    roles = qwen("qwen-roles", ("qwen_roles", "qwen_scaffolds"), QWEN_ROLES)
    save(roles, HERE / "studies" / "qwen-roles" / "arms.png")
    worth = qwen("qwen-worth", ("qwen_worth",), QWEN_WORTH)
    save(worth, HERE / "studies" / "qwen-worth" / "arms.png")
    confirmation = qwen(
        "qwen-confirmation",
        ("qwen_confirmation",),
        QWEN_CONFIRMATION,
        title="Qwen2.5-Coder-1.5B on Spider, 20 steps, three trainings an arm",
        most=75,
        height=470,
    )
    save(confirmation, HERE / "studies" / "qwen-confirmation" / "arms.png")
    save(mixture(), HERE / "studies" / "qwen-mixture" / "agents.png")
    one, by_role, critic = "one agent, all tools", "critic too, credit by role", "critic too"
    before = members(
        "team-roles-before", ("team_roles", "team_roles_begun"), (one, *MEMBERS, by_role, critic)
    )
    save(before, HERE / "studies" / "team-roles-before" / "arms.png")
    lora = ("in turn: planner", "in turn: workers beside it", "shared weights")
    arms = (*lora, one, "one agent, as many tokens", *MEMBERS, by_role, critic, "critic only")
    save(
        members("team-roles", ("team_roles", "team_lora"), arms),
        HERE / "studies" / "team-roles" / "arms.png",
    )

"""Build a report in one HTML file: data, charts, tables and episodes."""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from operator import attrgetter, itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.compare.by_role import held_by_role
from harness.compare.columns import Table, role_tables
from harness.compare.formats import html_tables, inline
from harness.compare.layout import tables
from harness.compare.measures import measure
from harness.compare.numbers import with_interval
from harness.compare.pairs import pairs_by_arm
from harness.compare.references import reference_rows
from harness.compare.sentences import sentences
from harness.compare.verdicts import verdict_text
from harness.errors import NothingToCompare
from harness.runs.monitor import cells, standing
from harness.runs.output import write_output
from harness.runs.replies import remarks_on
from harness.util.formatting import mean
from harness_report.charts import charts
from harness_report.manifest import manifest

if TYPE_CHECKING:
    from jinja2 import Template

    from harness.compare.keys import Arm, Comparison, Figures, Pair
    from harness.compare.references import Reference
    from harness.compare.selection import Selection
    from harness.runs.reading import Run

HERE = Path(__file__).parent
DIGITS = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;/=>?@^_`{|}~"
"""The digits of base 85 with `/` for `<`, which ends elements; as in `unpack` in page.js."""
EPISODES = 240
"""Default number of episodes in a report."""
COLUMNS = ("arm", "seed", "state", "step", "reward", "accuracy", "mean reward", "left")
"""Columns of the table of runs."""
OPEN_CHARTS = 4
"""Number of charts that a page shows at once; a fold has the others."""
SECTIONS = {
    "accuracy": "main",
    "transfer": "main",
    "transfer_differences": "main",
    "sides": "main",
    "starts": "main",
    "sampled": "main",
    "gains": "main",
    "learning": "main",
    "agreement": "main",
    "reward_parts": "main",
    "behaviour": "main",
    "by_role": "main",
    "by_role_differences": "main",
    "cost": "main",
    "evidence": "more",
    "checkpoints": "more",
    "views": "more",
    "exceptions": "more",
    "failed": "more",
    "references": "references",
}
"""Section of a page for every table that it shows."""
_INTERVAL = re.compile(r"\[[-+.\d]+, [-+.\d]+\]")
Contents = dict[str, Any]
"""Content of a page, by the names of its template."""


def write_report(
    selection: Selection,
    out: Path,
    *,
    baseline: str | None = None,
    allow: Iterable[str] = (),
    margin: float | None = None,
    episodes: int = EPISODES,
    references: bool | None = None,
) -> Path:
    """Write the report of a run or a study.

    Raises:
        NotComparable: Several runs that must not be compared.
        NoSuchArm: The baseline names no arm, or several.
        UserError: The file cannot be written.
    """
    text = render(selection, baseline, allow, margin, episodes, references)
    write_output(out, text)
    return out


def render(
    selection: Selection,
    baseline: str | None = None,
    allow: Iterable[str] = (),
    margin: float | None = None,
    episodes: int = EPISODES,
    references: bool | None = None,
) -> str:
    """Return the report as text."""
    from harness_report.episodes import sample

    comparison, compared_remarks = compared(selection, baseline, allow, margin)
    remarks = list(compared_remarks)
    task_sets: set[str] = set()
    for run in selection.runs:
        task_sets.add(str(run.record["identity"]["task_set"].get("name")))
        for remark in remarks_on(run.record["result"]):
            remarks.append(f"{run.name}: {remark}.")
    # Charts show the runs that the tables are of. Without a comparison there are no such tables,
    # and whatever has begun is shown.
    shown = selection.runs
    if comparison is not None:
        compared_arms = {arm["name"] for arm in comparison["arms"]}
        shown = [run for run in selection.runs if run.finished and run.arm in compared_arms]
    arms = by_arm(shown, comparison)
    published: list[Reference] = []
    if references is not False:
        published = reference_rows(None if references else min(task_sets))
    content = contents(selection, comparison, remarks, arms, sample(arms, episodes), published)
    if comparison is not None:
        # Rows of compared runs would only repeat the tables, and so would the trainings of policies
        # that were evaluated.
        left_out = {run.folder.id for run in selection.runs if run not in shown}
        rows = content["matrix"]
        content["matrix"] = [
            row for row in rows if row["state"] != "finished" or row["folder"] in left_out
        ]
        content["matrix_title"] = "Runs without a result"
    return page(content)


def compared(
    selection: Selection,
    baseline: str | None = None,
    allow: Iterable[str] = (),
    margin: float | None = None,
) -> tuple[Comparison | None, list[str]]:
    """Return the comparison of finished runs and remarks on it."""
    from harness.compare.comparison import compare

    try:
        comparison = compare(selection, baseline, allow, margin)
    except NothingToCompare as error:  # the page still shows the runs
        return None, [f"No comparison: {error}."]
    return comparison, sentences(comparison)


def by_arm(runs: Iterable[Run], comparison: Comparison | None) -> dict[str, list[Run]]:
    """Return runs with episodes by arm and seed, with arms in the comparison's order."""
    arms: dict[str, list[Run]] = {}
    # Empty lists first: they give the arms their order, and so the colours of the charts.
    for arm in comparison["arms"] if comparison else ():
        arms[arm["name"]] = []
    for run in sorted(runs, key=lambda run: run.seed):
        if len(run.episodes):
            arms.setdefault(run.arm, []).append(run)
    return {name: runs for name, runs in arms.items() if runs}


def contents(
    selection: Selection,
    comparison: Comparison | None,
    remarks: Sequence[str],
    arms: Mapping[str, list[Run]],
    browser: Mapping[str, object],
    published: Sequence[Reference] = (),
) -> Contents:
    """Return the content of a page, by the names of its template."""
    figures: dict[str, list[Figures]] = {}
    for arm, runs in arms.items():
        figures[arm] = list(map(measure, runs))
    shown = tables(comparison, published) if comparison else role_tables(held_by_role(figures))
    rows = matrix(selection)
    sections: dict[str, Any] = {}
    for name, chosen in _sections(shown, manifest(selection.runs)).items():
        sections[name] = _safe(html_tables(list(map(_with_whole_intervals, chosen))))
    return {
        "title": selection.name,
        "about": _about(selection.runs) if selection.runs else {},
        "question": selection.study.get("question", ""),
        "headline": _headline(comparison, arms),
        "matrix": rows,
        "matrix_title": "Runs",
        "columns": [name for name in COLUMNS if any(map(itemgetter(name), rows))],
        "remarks": remarks,
        "charts": charts(arms, comparison, figures),
        "open_charts": OPEN_CHARTS,
        "tables": sections,
        "browser": browser,
        "trained": any(run.trained for run in selection.runs),
        "live": None,
    }


def page(content: Contents) -> str:
    """Return the complete, self-contained page."""
    from plotly.offline import get_plotlyjs

    # A browser cannot parse NaN in JSON and would show an empty page, so it fails here instead.
    data = json.dumps(
        {"charts": content["charts"], "browser": content["browser"]},
        ensure_ascii=False,
        separators=(",", ":"),
        default=str,
        allow_nan=False,
    )
    return _template().render(
        content,
        data=_safe(packed(data)),
        style=_safe((HERE / "page.css").read_text(encoding="utf-8")),
        script=_safe((HERE / "page.js").read_text(encoding="utf-8")),
        plotly=_safe(packed(get_plotlyjs())),
    )


def blocks(content: Contents) -> dict[str, str]:
    """Return the parts of a page that change during a run, by name."""
    template = _template()
    parts = {}
    for name, block in template.blocks.items():
        parts[name] = "".join(block(template.new_context(content)))
    return parts


@cache
def _template() -> Template:
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(HERE), autoescape=True, undefined=jinja2.StrictUndefined
    )
    environment.filters["inline"] = lambda text: _safe(inline(text))
    return environment.get_template("page.html.j2")


def matrix(selection: Selection) -> list[dict[str, str]]:
    """Return one row per run, planned ones included: cells by column, and its `folder`."""
    runs = {run.folder.id: run for run in selection.runs}
    rows = []
    planned: set[str | None] = set()
    for job in selection.jobs:
        planned.add(job["run"])
        state = job.get("state", "planned")
        rows.append(_matrix_row(job["arm"], job["seed"], state, job["run"]))
    # Runs in the study's folder that no job claims, such as those of an earlier configuration.
    for name, run in runs.items():
        if name not in planned:
            rows.append(_matrix_row(run.arm, run.seed, run.state, name))
    # A single run needs no table of runs.
    if not selection.jobs and len(rows) < 2:
        return []
    for row in rows:
        if row["folder"] in runs:
            row |= progress_cells(runs[row["folder"]])
    return rows


def _matrix_row(arm: str, seed: int, state: str, folder: str | None) -> dict[str, str]:
    row = dict.fromkeys(COLUMNS, "")
    return row | {"folder": folder or "", "arm": arm, "seed": str(seed), "state": state}


def progress_cells(run: Run) -> dict[str, str]:
    """Return a run's state and cells of `harness.runs.monitor.cells`."""
    shown, rewards = cells(run.progress), run.logged("rollout/reward")
    # The progress of a finished run is read from its record, which has no reward of a step.
    if rewards and not shown["reward"]:
        shown["reward"] = f"{rewards[max(rewards)]:.3f}"
    return {"state": run.state, **shown}


def _sections(shown: Sequence[Table], manifest_tables: Sequence[Table]) -> dict[str, list[Table]]:
    sections: dict[str, list[Table]] = {"main": [], "more": [], "references": []}
    for table in shown:
        if table.key in SECTIONS:
            sections[SECTIONS[table.key]].append(table)
    sections["manifest"] = list(filter(attrgetter("rows"), manifest_tables))
    return sections


def _with_whole_intervals(table: Table) -> Table:
    """Return the table with intervals that do not break between lines, for narrow screens."""
    rows = []
    for row in table.rows:
        rows.append(list(map(_with_whole_interval, row)))
    return replace(table, rows=rows)


def _with_whole_interval(cell: str) -> str:
    return _INTERVAL.sub(lambda interval: interval.group().replace(" ", "\u00a0"), cell)


def _headline(comparison: Comparison | None, arms: Mapping[str, list[Run]]) -> list[dict[str, Any]]:
    """Return the key figures at the top of a page."""
    if comparison is None:
        # A run alone has room for all of its figures.
        if len(arms) == 1:
            (only_runs,) = arms.values()
            return _cards(only_runs[0])
        return [_card(arm, runs[0]) for arm, runs in arms.items()]
    by_arm = pairs_by_arm(comparison)
    graded = comparison.get("graded", False)
    cards = []
    for arm in comparison["arms"]:
        more = _headline_details(arm, by_arm.get(arm["name"]), comparison)
        value = mean(arm["accuracy_final"]["mean"], graded)
        cards.append({"label": arm["name"], "value": value, "more": more})
    return cards


def _headline_details(arm: Arm, pair: Pair | None, comparison: Comparison) -> list[str]:
    """Return the lines below an arm's result: initial value, difference or interval."""
    graded = comparison.get("graded", False)
    start, final = arm["accuracy_initial"], arm["accuracy_final"]
    details = [f"from {mean(start['mean'], graded)}"] if start else []
    if pair is not None:
        if not pair["identical"]:
            details.append(f"{with_interval(pair['difference'], True)} points")
        return [*details, verdict_text(pair)]
    if comparison["pairs"]:
        details.append("baseline")
    # An evaluation has no seeds of training that its interval would leave out.
    if comparison["kind"] == "eval":
        low, high = mean(final["low"], graded), mean(final["high"], graded)
        details.append(f"95 % interval {low} to {high}")
    elif len(arm["seeds"]) == 1:
        details.append("one seed")
    return details


def _card(arm: str, run: Run) -> dict[str, Any]:
    more = (run.record.get("reason"), standing(run.progress))
    return {"label": arm, "value": run.state, "more": list(filter(None, more))}


def _cards(run: Run) -> list[dict[str, Any]]:
    """Return one card per figure of an unfinished run."""
    now, failed = run.progress, measure(run)["failures"]
    doing = f"{now.phase}: {now.done} of {now.expected} rollouts" if run.state == "running" else ""
    first = _card(run.arm, run)
    first["more"] += filter(None, (doing, now.warning, now.remark))
    cards = [first]
    for name, cell in progress_cells(run).items():
        if cell in ("", "-") or name == "state":
            continue
        value, so_far, count = cell.partition(" so far")
        cards.append({"label": name, "value": value, "more": [f"so far{count}"] if so_far else []})
    lines = [f"{name.replace('_', ' ')} {count}" for name, count in failed.items()]
    cards.append({"label": "failures", "value": str(sum(failed.values())), "more": lines})
    return cards


def _about(runs: Sequence[Run]) -> dict[str, str]:
    """Return a description of the runs, in command-line terms."""
    # Dictionaries instead of sets keep the order of the runs.
    about: dict[str, dict[str, None]] = {"task": {}, "policy": {}, "agents": {}, "reward": {}}
    for run in runs:
        identity, config = run.record["identity"], run.record["config"]
        about["task"][str(identity["task_set"].get("name"))] = None
        about["policy"][str(config.get("policy", {}).get("path") or identity["model"])] = None
        about["agents"][run.record["agent"]] = None
        about["reward"][_reward(identity)] = None
    return {name: ", ".join(values) for name, values in about.items()}


def _reward(identity: Mapping[str, Any]) -> str:
    """Return the reward with its weighted parts, if any."""
    parts = identity.get("reward_options", {}).get("parts") or {}
    made_of = " + ".join(f"{part['weight']:g} {part['reward']}" for part in parts.values())
    return f"{identity['reward']} ({made_of})" if made_of else str(identity["reward"])


def packed(text: str) -> str:
    """Return deflated text in `DIGITS`. `base64.b85encode` is ten times slower."""
    import numpy as np

    data = zlib.compress(text.encode())
    words = np.frombuffer(data + bytes(-len(data) % 4), ">u4")[:, None]
    digits = np.frombuffer(DIGITS, "S1")[words // 85 ** np.arange(4, -1, -1) % 85].tobytes()
    # Four bytes are five digits. The last word was filled up, so its digits are cut as b85 does.
    rounded_up = -(-len(data) // 4)
    return str(digits[: len(data) + rounded_up], "ascii")


def _safe(text: str) -> Any:
    from markupsafe import Markup

    return Markup(text)

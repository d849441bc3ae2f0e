"""Build a report in one HTML file: data, charts, tables and episodes."""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.compare.by_role import held_by_role
from harness.compare.columns import Table, role_tables
from harness.compare.formats import html_tables, inline
from harness.compare.identity import differences
from harness.compare.layout import tables
from harness.compare.measures import measure
from harness.compare.numbers import with_interval
from harness.compare.references import reference_rows
from harness.compare.sentences import sentences
from harness.compare.verdicts import verdict_text
from harness.errors import NoSuchArm, NotComparable, UserError
from harness.runs.monitor import cells, standing, steps_of
from harness.runs.replies import remarks_on
from harness.util.formatting import duration, mean
from harness.util.parsing import flatten
from harness_report.charts import charts

if TYPE_CHECKING:
    from jinja2 import Template

    from harness.compare.keys import Comparison
    from harness.compare.references import Reference
    from harness.compare.runs import Run
    from harness.compare.selection import Selection

HERE = Path(__file__).parent
DIGITS = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;/=>?@^_`{|}~"
"""The digits of base 85 with `/` for `<`, which ends elements; as in `unpack` in page.js."""
EPISODES = 240
"""Default number of episodes in a report."""
COLUMNS = ("arm", "seed", "state", "step", "reward", "accuracy", "mean reward", "left")
"""Columns of the table of runs."""
OPEN_CHARTS = 4
"""Number of charts that a page shows at once; a fold has the others."""
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
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UserError(f"cannot write {out}: {error.strerror}") from error
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
    remarks = [
        *compared_remarks,
        *(
            f"{run.name}: {remark}."
            for run in selection.runs
            for remark in remarks_on(run.record["result"])
        ),
    ]
    names = {arm["name"] for arm in comparison["arms"]} if comparison else None
    shown = [run for run in selection.runs if names is None or (run.finished and run.arm in names)]
    arms = by_arm(shown, comparison)
    task_sets = {str(run.record["identity"]["task_set"].get("name")) for run in selection.runs}
    published = (
        [] if references is False else reference_rows(None if references else min(task_sets))
    )
    found = contents(selection, comparison, remarks, arms, sample(arms, episodes), published)
    return page(
        {
            **found,
            "matrix": found["matrix"]
            if selection.missing or len(shown) < len(selection.runs)
            else [],
        }
    )


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
    except (NotComparable, NoSuchArm):
        raise
    except UserError as error:  # nothing has finished yet; what there is can still be looked at
        return None, [f"No comparison: {error}."]
    return comparison, sentences(comparison)


def by_arm(runs: Iterable[Run], comparison: Comparison | None) -> dict[str, list[Run]]:
    """Return runs with episodes by arm and seed, with arms in the comparison's order."""
    arms: dict[str, list[Run]] = (
        {arm["name"]: [] for arm in comparison["arms"]} if comparison else {}
    )
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
    figures = {arm: [measure(run) for run in runs] for arm, runs in arms.items()}
    found = tables(comparison, published) if comparison else role_tables(held_by_role(figures))
    manifest = (
        [_runs(selection.runs), _identity(selection.runs), _parity(selection.runs)]
        if selection.runs
        else []
    )
    return {
        "title": selection.name,
        "about": _about(selection.runs) if selection.runs else {},
        "question": selection.study.get("question", ""),
        "headline": _headline(comparison, arms),
        "matrix": (rows := matrix(selection)),
        "columns": [name for name in COLUMNS if any(row[name] for row in rows)],
        "remarks": remarks,
        "charts": charts(arms, comparison, figures),
        "open_charts": OPEN_CHARTS,
        "tables": {
            name: _safe(html_tables([*map(_with_whole_intervals, chosen)]))
            for name, chosen in _sections(found, manifest).items()
        },
        "browser": browser,
        "trained": any(run.trained for run in selection.runs),
        "live": None,
    }


def page(found: Contents) -> str:
    """Return the complete, self-contained page."""
    from plotly.offline import get_plotlyjs

    data = {name: found[name] for name in ("charts", "browser")}
    return _template().render(
        found,
        data=_safe(
            packed(
                json.dumps(
                    data, ensure_ascii=False, separators=(",", ":"), default=str, allow_nan=False
                )
            )
        ),
        style=_safe((HERE / "page.css").read_text(encoding="utf-8")),
        script=_safe((HERE / "page.js").read_text(encoding="utf-8")),
        plotly=_safe(packed(get_plotlyjs())),
    )


def blocks(found: Contents) -> dict[str, str]:
    """Return the parts of a page that change during a run, by name."""
    template = _template()
    return {
        name: "".join(block(template.new_context(found))) for name, block in template.blocks.items()
    }


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
    seen = {str(job["run"]) for job in selection.jobs}
    planned = [
        (job["arm"], job["seed"], job.get("state", "planned"), job["run"]) for job in selection.jobs
    ]
    planned += [
        (run.arm, run.seed, run.record["status"], name)
        for name, run in runs.items()
        if name not in seen
    ]
    rows = []
    for arm, seed, state, name in planned if selection.jobs or len(planned) > 1 else ():
        row = dict.fromkeys(COLUMNS, "") | {
            "folder": name or "",
            "arm": arm,
            "seed": str(seed),
            "state": state,
        }
        rows.append({**row, **stands(runs[name])} if name in runs else row)
    return rows


def stands(run: Run) -> dict[str, str]:
    """Return a run's state and cells of `harness.runs.monitor.cells`."""
    found, rewards = cells(run.progress), run.logged("rollout/reward")
    if rewards and not found["reward"]:  # of a finished run
        found["reward"] = f"{rewards[max(rewards)]:.3f}"
    return {"state": run.record["status"], **found}


def _sections(found: Sequence[Table], manifest: Sequence[Table]) -> dict[str, list[Table]]:
    groups = {
        "main": "accuracy sampled learning agreement reward_parts behaviour "
        "by_role by_role_differences cost",
        "more": "evidence checkpoints views exceptions failed",
    }
    made = {
        name: [table for table in found if table.key in keys.split()]
        for name, keys in groups.items()
    }
    made["references"] = [table for table in found if table.key == "references"]
    made["manifest"] = [table for table in manifest if table.rows]
    return made


def _with_whole_intervals(table: Table) -> Table:
    """Return the table with intervals that do not break between lines, for narrow screens."""
    rows = [[_INTERVAL.sub(_unbroken, cell) for cell in row] for row in table.rows]
    return replace(table, rows=rows)


def _unbroken(interval: re.Match[str]) -> str:
    return interval.group().replace(" ", "\u00a0")


def _headline(comparison: Comparison | None, arms: Mapping[str, list[Run]]) -> list[dict[str, Any]]:
    """Return the key figures at the top of a page."""
    if comparison is None:
        alone = len(arms) == 1
        return [
            card
            for arm, runs in arms.items()
            for card in (_cards(runs[0]) if alone else [_card(arm, runs[0])])
        ]
    by_arm = {pair["arm"]: pair for pair in comparison["pairs"]}
    cards = []
    for arm in comparison["arms"]:
        pair = by_arm.get(arm["name"])
        start = arm["accuracy_initial"]
        graded = comparison.get("graded", False)
        more = [f"from {mean(start['mean'], graded)}"] if start else []
        if pair is not None:
            more += (
                [] if pair["identical"] else [f"{with_interval(pair['difference'], True)} points"]
            )
            more.append(verdict_text(pair))
        elif by_arm:
            more.append("baseline")
        if comparison["kind"] == "eval" and pair is None:
            low, high = arm["accuracy_final"]["low"], arm["accuracy_final"]["high"]
            more.append(f"95 % interval {mean(low, graded)} to {mean(high, graded)}")
        elif len(arm["seeds"]) == 1 and pair is None:
            more.append("one seed")
        cards.append(
            {
                "label": arm["name"],
                "value": mean(arm["accuracy_final"]["mean"], graded),
                "more": more,
            }
        )
    return cards


def _card(arm: str, run: Run) -> dict[str, Any]:
    more = (run.record.get("reason"), standing(run.progress))
    return {"label": arm, "value": run.record["status"], "more": list(filter(None, more))}


def _cards(run: Run) -> list[dict[str, Any]]:
    """Return one card per figure of an unfinished run."""
    now, failed = run.progress, measure(run)["failures"]
    doing = (
        f"{now.phase}: {now.done} of {now.expected} rollouts"
        if run.record["status"] == "running"
        else ""
    )
    first = _card(run.arm, run)
    first["more"] += filter(None, (doing, now.warning, now.remark))
    figures = [
        (name, *cell.partition(" so far"))
        for name, cell in stands(run).items()
        if cell not in ("", "-") and name != "state"
    ]
    lines = [f"{name.replace('_', ' ')} {count}" for name, count in failed.items()]
    rows = {"label": "failures", "value": str(sum(failed.values())), "more": lines}
    return [
        first,
        *({"label": a, "value": b, "more": [f"so far{d}"] if c else []} for a, b, c, d in figures),
        rows,
    ]


def _runs(runs: Sequence[Run]) -> Table:
    heads = [
        "run",
        "arm",
        "seed",
        "status",
        "steps",
        "launches",
        "time",
        "commit",
        "machine",
        "framework versions",
    ]
    rows = []
    for run in runs:
        record = run.record
        commit, result = record["commit"], record["result"]
        code = (
            f"{commit['hash'][:10]}{' (changed)' if commit['dirty'] else ''}"
            if commit
            else "no checkout"
        )
        machine = f"{record['hardware']['processor']}, {record['hardware']['cores']} cores"
        versions = ", ".join(f"{name} {version}" for name, version in record["frameworks"].items())
        left_s = run.progress.remaining_s
        time = (
            duration(result["wall_s"])
            if result
            else "-"
            if left_s is None
            else f"left {duration(left_s)}"
        )
        cells = [run.id, run.arm, str(run.seed), record["status"], steps_of(run.progress)]
        rows.append(
            [*cells, str(len(record["launches"]) or 1), time, code, machine, versions or "none"]
        )
    return Table("runs", "Runs", heads, rows)


def _identity(runs: Sequence[Run]) -> Table:
    """Return what must be identical: the value, or the number of different values."""
    flat = [flatten(run.record["identity"]) for run in runs]
    different = {one.key for one in differences(runs)}
    rows = []
    for key in dict.fromkeys(key for one in flat for key in one):
        values = list(dict.fromkeys(str(one.get(key, "absent")) for one in flat))
        same = (
            f"{len(values)} values"
            if key in different
            else "same in all"
            if len(values) == 1
            else "by seed"
        )
        rows.append([key, same, "; ".join(values[:4]) + (" ..." if len(values) > 4 else "")])
    return Table("identity", "What must be identical", ["key", "", "value"], rows)


def _parity(runs: Sequence[Run]) -> Table:
    from harness.plugins import is_reference

    rows = []
    for plugin in dict.fromkeys(run.record["agent"] for run in runs):
        shadow = _shadow([run for run in runs if run.record["agent"] == plugin])
        found = next(
            (run.parity for run in runs if run.record["agent"] == plugin and run.parity), None
        )
        if found is None:
            rows.append(
                [
                    plugin,
                    "the reference" if is_reference(plugin) else "no certificate",
                    "",
                    "",
                    "",
                    shadow,
                ]
            )
            continue
        kind = "same agent, certified" if found["strict"] else "idiomatic: measured, not the same"
        rows.append(
            [
                plugin,
                kind,
                found["hash"],
                str(found["scenarios"]),
                ", ".join(found["accepted"]) or "none",
                shadow,
            ]
        )
    heads = ["agent", "parity", "certificate", "scenarios", "accepted differences", "shadow check"]
    return Table("parity", "Parity certificates", heads, rows)


def _shadow(runs: Sequence[Run]) -> str:
    """Return a summary of the shadow checks of one agent's runs."""
    found = [shadow for run in runs if (shadow := run.record.get("shadow")) is not None]
    if not found:
        return "not checked"
    checked = sum(shadow["checked"] for shadow in found)
    identical = sum(shadow["identical"] for shadow in found)
    unchecked = sum(shadow["unchecked"] for shadow in found)
    left = f", {unchecked} not checked" if unchecked else ""
    return f"{identical} of {checked} rollouts identical{left}"


def _about(runs: Sequence[Run]) -> dict[str, str]:
    """Return a description of the runs, in command-line terms."""
    found: dict[str, dict[str, None]] = {"task": {}, "policy": {}, "agents": {}, "reward": {}}
    for run in runs:
        identity, config = run.record["identity"], run.record["config"]
        found["task"][str(identity["task_set"].get("name"))] = None
        found["policy"][str(config.get("policy", {}).get("path") or identity["model"])] = None
        found["agents"][run.record["agent"]] = None
        found["reward"][_reward(identity)] = None
    return {name: ", ".join(values) for name, values in found.items()}


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
    found = np.frombuffer(DIGITS, "S1")[words // 85 ** np.arange(4, -1, -1) % 85].tobytes()
    return str(found[: len(data) + -(-len(data) // 4)], "ascii")


def _safe(text: str) -> Any:
    from markupsafe import Markup

    return Markup(text)

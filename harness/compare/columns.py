"""Tables of a comparison as columns: a head and the cells.

Columns without any measurement are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import Any, Literal, TypeVar

from harness.compare.by_role import ROLE_FIGURES
from harness.compare.keys import Arm, ByRole, Comparison, Pair, RoleFigure, ToolUse
from harness.compare.numbers import formed, interval, known_digits, number, points
from harness.compare.references import Reference, reference_note

Row = TypeVar("Row")


ANSWERS_NOTE = (
    "Answers that fail are not among the failures where the reward does not report them. "
)
TOOLS_NOTE = (
    "Calls parsed: tool calls that the policy's server read out of replies, "
    "in all rollouts, and these with the replies "
    "that look like one and were not read. "
)
ROLE_NOTE = "Of the last validation; credit, what trained calls were paid, of all of training. "


@dataclass(frozen=True, slots=True)
class Table:
    """One table: a title, column heads, and cells as text, [rows, columns].

    `key` names it in files.

    The first `named` columns identify a row; a terminal too narrow for all columns repeats these.
    """

    key: str
    title: str
    heads: list[str]
    rows: list[list[str]]
    note: str = ""
    named: int = 1


def behaviour(comparison: Comparison) -> Table:
    """Return the table of calls, tokens, rewrites and failures."""
    cells: dict[str, Callable[[Arm], str]] = {
        "arm": lambda arm: arm["name"],
        "calls/rollout": lambda arm: number(arm["transitions_per_rollout"], 2),
        "calls parsed / looked like calls": parsed_of,
        "prompt tokens": lambda arm: number(arm["prompt_tokens_per_rollout"], 0),
        "response tokens": lambda arm: number(arm["response_tokens_per_rollout"], 0),
        "rewritten": lambda arm: number(arm["rewritten"], 1),
        "helped": lambda arm: number(arm["helped"], 1),
        "hurt": lambda arm: number(arm["hurt"], 1),
        "unscored": lambda arm: number(arm["unscored"], 0),
        "groups with signal %": lambda arm: points(arm["signal"]),
        "failures": _failures_of,
        "parity": lambda arm: arm["parity"],
    }
    title = "What the agents did"
    if comparison["kind"] == "train":
        title += " (last validation; failures over the whole run)"
    return _from_cells("behaviour", title, cells, comparison["arms"], _behaviour_note(comparison))


def _failures_of(arm: Arm) -> str:
    counts = [f"{cause} {count:,}" for cause, count in arm["failures"].items()]
    return ", ".join(counts) or "none"


def _behaviour_note(comparison: Comparison) -> str:
    note = "Means over seeds, per rollout that ended well; unscored and failures are sums. "
    if any(arm["unknown_answers"] for arm in comparison["arms"]):
        note += ANSWERS_NOTE
    if any(parsed_of(arm) for arm in comparison["arms"]):
        note += TOOLS_NOTE
    note += "Rewritten, helped and hurt count questions of one "
    if comparison["kind"] != "train":
        return note + "evaluation."
    with_signal = "with different rewards among their rollouts"
    # Rejection sampling also learns from a group with equal rewards. The note names that case only
    # where the algorithm differs between the runs, or readers would look for it in every table.
    algorithms: set[Any] = set()
    for exempt in comparison["exceptions"]:
        if exempt["key"] == "train.algorithm":
            algorithms.update(exempt["values"].values())
    if "rejection" in algorithms:
        with_signal += ", or, with train.algorithm=rejection, with a rollout to train on"
    return (
        f"{note}validation. Groups with signal are training tasks {with_signal}; "
        "the others teach nothing."
    )


def parsed_of(figures: ToolUse) -> str:
    """Return the parsed tool calls and the replies that look like one, if tools were offered."""
    parsed, unread_calls = figures["parsed_calls"], figures["unread_calls"]
    if not figures["calls_with_tools"] or parsed is None or unread_calls is None:
        return ""
    return f"{number(parsed, 1)} / {number(parsed + unread_calls, 1)}"


def role_tables(by_role: ByRole, baseline: str = "", note: str = ROLE_NOTE) -> list[Table]:
    """Return tables of figures by role with differences, empty unless an arm has several roles."""
    means = _role_table("by_role", "By role", _role_rows(by_role, by_role, _mean_of_role), note)
    if not baseline:
        return [means]
    # The baseline's own row would consist of dashes.
    others = [arm for arm in by_role if arm != baseline]
    differences = _role_table(
        "by_role_differences",
        f"By role, against {baseline}",
        _role_rows(by_role, others, _difference_of_role),
        "Paired by seed. Intervals are not corrected, and no verdict rests on them.",
    )
    # If the baseline made no calls, there are no differences to show.
    if len(differences.heads) <= differences.named:
        return [means]
    return [means, differences]


def _role_rows(
    by_role: ByRole, arms: Iterable[str], cell: Callable[[RoleFigure, str], str]
) -> list[list[str]]:
    """Return one row per role of these arms, each with arm and role in front."""
    # With one role in every arm, the rows would only repeat the other tables.
    if not any(len(roles) > 1 for roles in by_role.values()):
        return []
    rows = []
    for arm in arms:
        # A single arm needs no name: its column stays empty, and empty columns are left out.
        shown_arm = arm if len(by_role) > 1 else ""
        for role, figures in by_role[arm].items():
            row = [shown_arm, role]
            for name, (_, form) in ROLE_FIGURES.items():
                row.append(cell(figures[name], form))
            rows.append(row)
    return rows


def _role_table(key: str, title: str, rows: list[list[str]], note: str) -> Table:
    heads = ["arm", "role"]
    for head, _ in ROLE_FIGURES.values():
        heads.append(head)
    # Rows are already text, so a column takes the cell at its own place.
    cells: dict[str, Callable[[list[str]], str]] = {}
    for place, head in enumerate(heads):
        cells[head] = itemgetter(place)
    table = _from_cells(key, title, cells, rows, note.strip())
    return replace(table, named=2 if "arm" in table.heads else 1)


def _mean_of_role(figure: RoleFigure, form: str) -> str:
    return formed(figure["mean"], figure["interval"], form)


def _difference_of_role(figure: RoleFigure, form: str) -> str:
    return formed(figure["difference"], figure["difference_interval"], form, signed=True)


def cost(comparison: Comparison) -> Table:
    """Return the table of times of steps, runs and calls."""
    trained = comparison["kind"] == "train"
    cells: dict[str, Callable[[Arm], str]] = {
        "arm": lambda arm: arm["name"],
        "steps": lambda arm: number(arm["steps"] if trained else None, 0),
        "s/step": lambda arm: number(arm["step_s"], 1),
        "rollout %": lambda arm: points(arm["shares"].get("rollout")),
        "update %": lambda arm: points(arm["shares"].get("update")),
        "weights %": lambda arm: points(arm["shares"].get("weights")),
        "other %": lambda arm: points(arm["shares"].get("other")),
        "run (min)": lambda arm: number(None if arm["wall_s"] is None else arm["wall_s"] / 60, 1),
        "GPU-hours": lambda arm: number(arm["gpu_hours"], 2),
        "framework ms/call": lambda arm: _ms_per_call(arm, "overhead_ms_per_call"),
        "gateway ms/call": lambda arm: _ms_per_call(arm, "gateway_ms_per_call"),
    }
    note = (
        "Framework: a rollout's time outside calls of model and tools, "
        "waiting for the processor included."
    )
    if trained:
        note = f"Seconds a step without checkpoints and validation. {note}"
    if not comparison["times_compare"]:
        note += " Times of different arms do not compare: not all had alike machines."
    return _from_cells("cost", "What it cost", cells, comparison["arms"], note)


def _ms_per_call(arm: Arm, key: Literal["overhead_ms_per_call", "gateway_ms_per_call"]) -> str:
    """Return a time over the seeds; from their spread follows how many of its digits are known."""
    return known_digits([run[key] for run in arm["per_seed"]])


def evidence(comparison: Comparison) -> Table:
    """Return statistics over trainings, on which no verdict rests except for collapses."""
    cells: dict[str, Callable[[Pair], str]] = {
        "arm against baseline": lambda pair: pair["arm"],
        "interval with unseen collapses": lambda pair: interval(pair["collapses"]["interval"]),
        "bootstrap over seeds and clusters": lambda pair: interval(
            pair["training"]["hierarchical_bootstrap"]
        ),
        "IQM difference": lambda pair: points(
            pair["training"]["interquartile_mean_difference"], signed=True
        ),
        "P(better)": lambda pair: number(pair["training"]["probability_of_improvement"], 2),
    }
    note = (
        "Differences in points. Unseen collapses: the range of the mean if trainings that no seed "
        f"has shown differ by up to {100 * comparison['collapse']:g} points. "
        "Verdicts of equivalence use it; no verdict uses the other columns."
    )
    # A single seed gives no evidence on trainings, so `training` is empty for such a pair.
    shown = [pair for pair in comparison["pairs"] if pair["training"]]
    return _from_cells("evidence", "Further evidence", cells, shown, note)


def references_of(references: Sequence[Reference]) -> Table:
    """Return the table of figures published by others."""
    cells: dict[str, Callable[[Reference], str]] = {
        "published by others": lambda row: row["label"],
        "task set": lambda row: row["task_set"],
        "initial %": lambda row: points(row.get("accuracy_initial")),
        "final %": lambda row: points(row.get("accuracy_final")),
        "best %": lambda row: points(row.get("accuracy_best")),
        "s/step": lambda row: number(row.get("step_s"), 1),
        "rollout %": lambda row: points(row.get("rollout_share")),
        "update %": lambda row: points(row.get("update_share")),
        "remark": lambda row: (
            row.get("remark", "") + ("" if row.get("checked") else " (not checked with its source)")
        ),
        "source": lambda row: row["source"],
    }
    return _from_cells(
        "references", "Reference figures, published by others", cells, references, reference_note()
    )


def _from_cells(
    key: str,
    title: str,
    cells: Mapping[str, Callable[[Row], str]],
    rows: Sequence[Row],
    note: str = "",
) -> Table:
    heads: list[str] = []
    columns: list[list[str]] = []
    for head, cell in cells.items():
        column = [cell(row) for row in rows]
        # A column without any measurement would suggest that something was measured as nothing.
        if column and set(column) <= {"-", ""}:
            continue
        heads.append(head)
        columns.append(column)
    # Cells were made by column, to leave empty ones out; a table has them by row.
    filled = list(map(list, zip(*columns, strict=True)))
    return Table(key, title, heads, filled, note)

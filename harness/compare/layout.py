"""What the tables of a comparison show: columns, cells and the sentences around them, free of any format."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import Any, TypeVar

from harness.compare.by_role import ROLE_FIGURES
from harness.compare.keys import Arm, ByRole, Comparison, Pair, Reference, RoleFigure, View
from harness.compare.numbers import formed, interval, number, p_value, points, with_interval
from harness.compare.references import reference_note
from harness.compare.sampled import title
from harness.compare.verdicts import conclusions, few_clusters, measure_text, verdict_text
from harness.wording import measured

Row = TypeVar("Row")
ROLE_NOTE = "Of the last validation; credit, what trained calls were paid, of all of training. "


@dataclass(frozen=True, slots=True)
class Table:
    """One table: a title, column heads, and cells as text, [rows, columns]. `key` names it in files."""

    key: str
    title: str
    heads: list[str]
    rows: list[list[str]]
    note: str = ""


def tables(comparison: Comparison, references: Sequence[Reference] = ()) -> list[Table]:
    """All tables of a comparison, in reading order; empty ones are left out."""
    first = (_accuracy, _sampled, _learning, _agreement, _reward_parts, _behaviour, _cost, _evidence)
    made = [make(comparison) for make in (*first, _checkpoints, _views, _exceptions, _failed)]
    note = f"{ROLE_NOTE * (comparison['kind'] == 'train')}Means over seeds, intervals: 95 %, for new seeds."
    made[6:6] = role_tables(comparison["by_role"], comparison["baseline"], note)
    made.append(_references(references))
    return [table for table in made if table.rows]


def sentences(comparison: Comparison) -> list[str]:
    """How to read the tables, and what speaks against reading too much into them."""
    margin = comparison["margin"]
    closing = [*comparison["remarks"], *(f"Not in the comparison: {text}." for text in comparison["missing"])]
    if not comparison["pairs"]:
        alone = [f"{_checkpoint(comparison)}Intervals: 95 %. One arm alone: there is nothing to compare."]
        if comparison["one_seed"] and comparison["kind"] == "train":
            alone.append("One seed: another training may reach something else.")
        return [*_no_signal(comparison), *alone, *_ceiling(comparison), *closing]
    found = [
        f"Baseline: {comparison['baseline']}. {_checkpoint(comparison)}Intervals: 95 %. "
        f"p values are corrected over all comparisons (Holm); different means p < {comparison['alpha']:g}.",
        *conclusions(comparison),
        *_no_signal(comparison),
        f"Equivalent means: in {comparison['min_seeds']} seeds or more the difference is shown to lie within "
        f"±{100 * margin:g} points, the margin stated beforehand (p < {comparison['alpha']:g}), even if a training "
        f"that no seed has shown collapses by {100 * comparison['collapse']:g} points."
        if margin is not None
        else "No margin was stated, so nothing can be called equivalent.",
        *_collapses(comparison),
        *_few_clusters(comparison),
    ]
    if comparison.get("graded"):
        low, high = comparison.get("span", (0.0, 1.0))
        found.append(f"Rewards are graded, from {low:g} to {high:g}; a point is a hundredth of mean reward.")
    found += _ceiling(comparison)
    if comparison["one_seed"]:
        found.append(
            "One seed an arm: this compares these checkpoints. It says nothing about what another training would reach."
        )
    elif any(pair["one_seed"] for pair in comparison["pairs"]):
        found.append("Where only one seed is common, the comparison is of these checkpoints alone.")
    return [*found, *closing]


def _checkpoint(comparison: Comparison) -> str:
    return "Checkpoint: the last of every run. " if comparison["kind"] == "train" else ""


def _no_signal(comparison: Comparison) -> list[str]:
    """Which trainings had nothing to learn from, and why."""
    found = []
    for arm in comparison["arms"]:
        flat = {run["seed"]: run["no_signal"] for run in arm["per_seed"] if run["no_signal"]}
        if flat:
            which = (
                "" if len(flat) == len(arm["seeds"]) else f", seed{'s' * (len(flat) > 1)} {', '.join(map(str, flat))}"
            )
            found.append(
                f"Nothing could be learned in {arm['name']}{which}: no task's rollouts gave a gradient. "
                f"{' '.join(dict.fromkeys(flat.values()))}"
            )
    return found


def _collapses(comparison: Comparison) -> list[str]:
    """What the seeds say of trainings that they have not shown."""
    found = []
    trained = [pair for pair in comparison["pairs"] if pair["learned"] and not pair["one_seed"]]
    if same := [pair for pair in trained if pair["identical"]]:
        names, share = ", ".join(pair["arm"] for pair in same), max(pair["collapses"]["share"] for pair in same)
        found.append(
            f"Up to {points(share)} % of trainings with other seeds may still part from the baseline's, though these "
            f"are identical (95 %): {names}."
        )
    if rest := [pair for pair in trained if not pair["identical"]]:
        far = comparison["margin"] or comparison["collapse"]
        shares = "; ".join(
            f"{pair['arm']} {points(pair['collapses']['share'])} % ({pair['collapses']['seen']} of "
            f"{pair['difference']['seeds']} seeds seen)"
            for pair in rest
        )
        found.append(
            f"Trainings that may lie {100 * far:g} points or more off the baseline's, the largest share that the seeds "
            f"do not exclude (95 %, each): {shares}. Intervals of differences reckon with such as were seen only."
        )
    return found


def _few_clusters(comparison: Comparison) -> list[str]:
    """That clusters leave little power, however many seeds there are."""
    few = [pair["difference"] for pair in comparison["pairs"] if few_clusters(pair)]
    if not few:
        return []
    fewest = min(few, key=lambda found: found["equal_clusters"])
    return [
        f"The questions lie in {fewest['clusters']} clusters, which tell as much as {fewest['equal_clusters']:.1f} of "
        "equal size. Verdicts are to hold for other clusters, so only large differences can be shown, however many "
        "seeds there are."
    ]


def _ceiling(comparison: Comparison) -> list[str]:
    """What cannot be concluded where the task set is too easy for all arms."""
    if not comparison["ceiling"]:
        return []
    graded, highest = comparison.get("graded", False), comparison.get("span", (0.0, 1.0))[1]
    room = highest - min(arm["accuracy_final"]["mean"] for arm in comparison["arms"])
    text = (
        f"The task set is saturated: every arm ends within {points(room)} points of "
        f"{f'{highest:g}' if graded else '100 %'}, so final {measured(graded)} cannot separate them by more than that."
    )
    if comparison["pairs"] and comparison["margin"] is not None and comparison["margin"] >= room:
        text += (
            f" Equivalence within ±{100 * comparison['margin']:g} points is then almost given; a harder set may differ."
        )
    return [text]


def _accuracy(comparison: Comparison) -> Table:
    by_arm = {pair["arm"]: pair for pair in comparison["pairs"]}
    trained = comparison["kind"] == "train"
    reached = "final" if trained else measured(comparison.get("graded", False))
    rows = []
    for arm in comparison["arms"]:
        pair = by_arm.get(arm["name"])
        same = pair is not None and pair["identical"]
        row = {
            "arm": arm["name"],
            "seeds": _seeds(arm),
            "initial %": with_interval(arm["accuracy_initial"]),
            f"{reached} %": with_interval(arm["accuracy_final"]),
            "failed by agent %": points(arm["agent_failed"]),
            f"{reached} %, unscored wrong to right": interval(arm["accuracy_bounds"], signed=False),
        }
        if comparison["pairs"]:
            row |= {
                "difference (points)": "baseline",
                "difference, unscored against to for": "",
                "p": "",
                "p (equivalence)": "",
                "verdict": "",
            }
        if pair is not None:
            row |= {
                "difference (points)": "identical" if same else with_interval(pair["difference"], signed=True),
                "difference, unscored against to for": interval(pair["difference_bounds"]),
                "p": "-" if same else p_value(pair["p_holm"]),
                "p (equivalence)": "-" if same else p_value(pair["p_equivalence_holm"]),
                "verdict": verdict_text(pair),
            }
        rows.append(row)
    absent = set() if trained else {"initial %"}
    if not any(arm["agent_failed"] for arm in comparison["arms"]):
        absent.add("failed by agent %")
    if all(arm["accuracy_bounds"] is None for arm in comparison["arms"]):
        absent |= {f"{reached} %, unscored wrong to right", "difference, unscored against to for"}
    heads = [head for head in rows[0] if head not in absent]
    return _of_rewards(comparison, Table("accuracy", "", heads, [[row[head] for head in heads] for row in rows]))


def _of_rewards(comparison: Comparison, table: Table) -> Table:
    """A table of accuracy; of graded rewards, which are no shares, in hundredths without percent."""
    titles = {
        "accuracy": "{} on validation" if comparison["kind"] == "train" else "{}",
        "sampled": "Several samples of each task",
        "learning": "Learning on the way",
        "views": "Fair views on what was trained",
    }
    name = measured(comparison.get("graded", False))
    heading = titles[table.key].format(name.capitalize())
    note = table.note.replace("accuracy", name).replace("Accuracy", name.capitalize())
    if not comparison.get("graded"):
        return replace(table, title=heading)
    heads = [head.replace(" %", "") if head != "failed by agent %" else head for head in table.heads]
    heads = ["value" if head == "%" else head.replace("wrong to right", "lowest to highest") for head in heads]
    return replace(table, title=f"{heading}, in hundredths", heads=heads, note=note.replace(" in %", ""))


def _sampled(comparison: Comparison) -> Table:
    """Every measure of every arm in a row of its own."""
    several = comparison.get("sampled")
    heads = ["arm", "measure", "%", *(("difference (points)", "p") if comparison["pairs"] else ())]
    if several is None:
        return Table("sampled", "", heads, [])
    rows = []
    for arm, found in several["arms"].items():
        for key in several["measures"]:
            cells = [arm, title(key, comparison.get("graded", False)), with_interval(found[key]["estimate"])]
            if comparison["pairs"] and arm == comparison["baseline"]:
                cells += ["baseline", ""]
            elif comparison["pairs"]:
                cells += [with_interval(found[key]["difference"], signed=True), p_value(found[key].get("p_holm"))]
            rows.append(cells)
    note = f"{several['samples']} samples a task, by task and seed, then means."
    if comparison["pairs"]:
        note += " p values are corrected over this table."
    if any(several["short"].values()):
        short = ", ".join(f"{arm} {count}" for arm, count in several["short"].items() if count)
        note += f" Fewer of them scored, those used: {short}."
    return _of_rewards(comparison, Table("sampled", "", heads, rows, note))


def _learning(comparison: Comparison) -> Table:
    measures = comparison["learning"]["measures"]
    heads = ["arm"]
    for key in measures:
        heads += [f"{measure_text(key, comparison)} %", *(("difference (points)", "p") if comparison["pairs"] else ())]
    same = {pair["arm"] for pair in comparison["pairs"] if pair["identical"]}
    rows = []
    for arm in comparison["arms"]:
        cells = [arm["name"]]
        for key in measures:
            one = comparison["learning"]["arms"][arm["name"]][key]
            cells.append(with_interval(one["estimate"]))
            if comparison["pairs"]:
                if arm["name"] == comparison["baseline"]:
                    cells += ["baseline", ""]
                elif arm["name"] in same:
                    cells += ["identical", "-"]
                else:
                    cells += [with_interval(one["difference"], signed=True), p_value(one.get("p_holm"))]
        rows.append(cells)
    note = "Area under the curve: accuracy, averaged over the steps from the first validation to the last."
    if comparison["pairs"]:
        note = f"Secondary: p values are corrected over this table, and no verdict rests on it. {note}"
    return _of_rewards(comparison, Table("learning", "", heads, rows if measures else [], note))


def _agreement(comparison: Comparison) -> Table:
    rows = [
        [
            name,
            *map(points, (one["start"], one["first"], one["training"], one["end"], one["gradient"])),
            "-" if not one["steps"] else "never" if one["parted"] is None else f"{one['parted']}",
            f"{one['draws']:,}",
        ]
        for name, one in comparison["agreement"].items()
        if one["draws"]
    ]
    heads = ["arm", "before training %", "first step %", "all steps %", "last validation %"]
    heads += ["gradient norm, largest difference %", "first divergent step", "rollouts compared"]
    note = (
        "Share of rollouts with the very same answer as the baseline's, of the same seed, task and step. "
        "First divergent step: of any seed, the first in which an answer or the norm of the gradient differs. Every "
        "step is in `--format json`."
    )
    if any(arm["gpu_hours"] for arm in comparison["arms"]):
        note += (
            " On a GPU rounding may depend on what else is in a batch from the first call on: two runs of one agent "
        )
        note += "may give less than 100 too."
    return Table("agreement", f"Same answers as {comparison['baseline']}", heads, rows, note)


def _reward_parts(comparison: Comparison) -> Table:
    arms = comparison["arms"]
    parts = list(dict.fromkeys(part for arm in arms for part in arm["reward_parts"]))
    rows = [[arm["name"], *(number(arm["reward_parts"].get(part), 3) for part in parts)] for arm in arms]
    note = "Means over the verdicts that have the part, then over seeds."
    if comparison["kind"] == "train":
        note = f"Last validation: {note[0].lower()}{note[1:]}"
    return Table("reward_parts", "Parts of the reward", ["arm", *parts], rows if parts else [], note)


def _behaviour(comparison: Comparison) -> Table:
    cells: dict[str, Callable[[Arm], str]] = {
        "arm": lambda arm: arm["name"],
        "calls/rollout": lambda arm: number(arm["transitions_per_rollout"], 2),
        "prompt tokens": lambda arm: number(arm["prompt_tokens_per_rollout"], 0),
        "response tokens": lambda arm: number(arm["response_tokens_per_rollout"], 0),
        "rewritten": lambda arm: number(arm["rewritten"], 1),
        "helped": lambda arm: number(arm["helped"], 1),
        "hurt": lambda arm: number(arm["hurt"], 1),
        "unscored": lambda arm: number(arm["unscored"], 0),
        "groups with signal %": lambda arm: points(arm["signal"]),
        "failures": lambda arm: ", ".join(f"{name} {count:,}" for name, count in arm["failures"].items()) or "none",
        "parity": lambda arm: arm["parity"],
    }
    chosen = any(one["key"] == "train.algorithm" for one in comparison["exceptions"])
    differ = f"whose rewards differ{', or with train.algorithm=rejection one that is trained on' * chosen}"
    return _from_cells(
        "behaviour",
        f"What the agents did{' (last validation; failures over the whole run)' * (comparison['kind'] == 'train')}",
        cells,
        comparison["arms"],
        "Per rollout that ended well, means over seeds. Rewritten, helped and hurt count questions of one "
        + (
            f"validation. Groups with signal: training rollouts of one task {differ}; others teach nothing."
            if comparison["kind"] == "train"
            else "evaluation."
        ),
    )


def role_tables(found: ByRole, baseline: str = "", note: str = ROLE_NOTE) -> list[Table]:
    """Figures by role, and their differences to the baseline's; no rows unless an arm has several roles."""
    heads = ("arm", "role", *(head for head, _ in ROLE_FIGURES.values()))
    several = any(len(roles) > 1 for roles in found.values())

    def table(key: str, title: str, left_out: str | None, said: str, cell: Callable[[RoleFigure, str], str]) -> Table:
        names = {arm: arm if len(found) > 1 else "" for arm in found if arm != left_out}
        shown = [(names[arm], role, of) for arm in names for role, of in found[arm].items()]
        forms = [(name, form) for name, (_, form) in ROLE_FIGURES.items()]
        rows = [[arm, role, *(cell(of[name], form) for name, form in forms)] for arm, role, of in shown if several]
        return _from_cells(key, title, {head: itemgetter(at) for at, head in enumerate(heads)}, rows, said)

    against = "Paired by seed. Intervals are not corrected, and no verdict rests on them."
    return [
        table("by_role", "By role", None, note.strip(), lambda of, form: formed(of["mean"], of["interval"], form)),
        table("by_role_differences", f"By role, against {baseline}", baseline, against, _difference_of_role),
    ][: 1 + bool(baseline)]


def _difference_of_role(one: RoleFigure, form: str) -> str:
    return formed(one["difference"], one["difference_interval"], form, signed=True)


def _cost(comparison: Comparison) -> Table:
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
        "framework ms/call": lambda arm: number(arm["overhead_ms_per_call"], 2),
        "gateway ms/call": lambda arm: number(arm["gateway_ms_per_call"], 2),
    }
    return _from_cells(
        "cost",
        "What it cost",
        cells,
        comparison["arms"],
        ("Seconds a step without checkpoints and validation. " if trained else "")
        + "Framework: a rollout's time outside calls of model and tools, waiting for the processor included."
        + (
            ""
            if comparison["times_compare"]
            else " Times of different arms do not compare: not all had alike machines."
        ),
    )


def _evidence(comparison: Comparison) -> Table:
    cells: dict[str, Callable[[Pair], str]] = {
        "arm against baseline": lambda pair: pair["arm"],
        "interval with unseen collapses": lambda pair: interval(pair["collapses"]["interval"]),
        "bootstrap over seeds and clusters": lambda pair: interval(pair["training"]["hierarchical_bootstrap"]),
        "IQM difference": lambda pair: points(pair["training"]["interquartile_mean_difference"], signed=True),
        "P(better)": lambda pair: number(pair["training"]["probability_of_improvement"], 2),
    }
    note = (
        f"Differences in points. Unseen collapses: what the mean may be if trainings that no seed has shown lie up to "
        f"{100 * comparison['collapse']:g} points off. Verdicts of equivalence rest on it, none rests on the others."
    )
    shown = [pair for pair in comparison["pairs"] if pair["training"]]
    return _from_cells("evidence", "Further evidence", cells, shown, note)


def _checkpoints(comparison: Comparison) -> Table:
    """Item-level statistics, shown where one seed is all there is: of several, they would pass seeds for questions."""
    rows = []
    for pair in comparison["pairs"]:
        if pair["one_seed"]:
            tests = pair["item"]["mcnemar"]
            counts = "; ".join(f"{one['only_first']}:{one['only_second']} p {p_value(one['p'])}" for one in tests)
            rows.append([pair["arm"], counts or "-", interval(pair["item"]["cluster_bootstrap"])])
    heads = ["arm against baseline", "McNemar", "bootstrap over clusters"]
    note = (
        "Good for one thing: whether these very checkpoints answer differently, on questions (McNemar) or clusters of "
        "them like these. Of other trainings it says nothing, and no verdict rests on it."
    )
    if all(counts == "-" for _, counts, _ in rows):  # graded, or paired by task: there is no right and wrong to count
        heads, rows = [heads[0], heads[2]], [[arm, interval] for arm, _, interval in rows]
        note = note.replace("questions (McNemar) or clusters of them", "clusters")
    return Table("checkpoints", "These checkpoints alone", heads, rows, note)


def _views(comparison: Comparison) -> Table:
    found = comparison["views"] if comparison["pairs"] else comparison["views"][:1]
    if not found:
        return Table("views", "", [], [])
    heads = ["arm", *(head for view in found for head in _view_heads(view))]
    heads += ["optimizer steps", "trained tokens", "trained calls by role"]
    rows = []
    same = {pair["arm"] for pair in comparison["pairs"] if pair["identical"]} | {comparison["baseline"]}
    for arm in comparison["arms"]:
        cells = []
        for view in found:
            one = view["arms"][arm["name"]]
            cells.append(points(one["accuracy"]))
            if view["budget"] is not None:
                told = "baseline" if arm["name"] == comparison["baseline"] else "identical"
                cells.append(told if arm["name"] in same else with_interval(one["difference"], signed=True))
        roles = ", ".join(f"{role} {number(one['transitions'], 0)}" for role, one in arm["trained_by_role"].items())
        rows.append(
            [
                arm["name"],
                *cells,
                number(arm["optimizer_steps"], 0),
                number(arm["trained_tokens"], 0),
                roles or number(arm["trained_transitions"], 0),
            ]
        )
    note = "Accuracy in % of the last validation within the budget of the run that used least; means over seeds."
    if comparison["pairs"]:
        note += " One budget says nothing of others. Intervals are not corrected, and no verdict rests on them."
    return _of_rewards(comparison, Table("views", "", heads, rows, note))


def _view_heads(view: View) -> list[str]:
    if view["budget"] is None:
        return ["as configured %"]
    what = "optimizer steps" if view["key"] == "equal_optimizer_steps" else "trained tokens"
    return [f"at {view['budget']:,} {what} %", "difference (points)"]


def _exceptions(comparison: Comparison) -> Table:
    rows = []
    for one in comparison["exceptions"]:
        values = one.get("said") or list(dict.fromkeys(_cell(value) for value in one["values"].values()))
        why = "varied by the study" if one["why"] == "varied" else "allowed by --allow"
        rows.append([one["key"], why, "; ".join(values)])
    return Table("exceptions", "Not identical, with permission", ["key", "why", "values"], rows)


def _failed(comparison: Comparison) -> Table:
    rows = [
        [one["arm"], str(one["seed"]), one["status"], one["reason"][:160], one["run"]] for one in comparison["failed"]
    ]
    return Table("failed", "Runs that are not in the comparison", ["arm", "seed", "status", "reason", "run"], rows)


def _references(found: Sequence[Reference]) -> Table:
    cells: dict[str, Callable[[Reference], str]] = {
        "published by others": lambda row: row["label"],
        "task set": lambda row: row["task_set"],
        "initial %": lambda row: points(row.get("accuracy_initial")),
        "final %": lambda row: points(row.get("accuracy_final")),
        "best %": lambda row: points(row.get("accuracy_best")),
        "s/step": lambda row: number(row.get("step_s"), 1),
        "rollout %": lambda row: points(row.get("rollout_share")),
        "update %": lambda row: points(row.get("update_share")),
        "remark": lambda row: row.get("remark", "") + ("" if row.get("checked") else " (not checked with its source)"),
        "source": lambda row: row["source"],
    }
    return _from_cells("references", "Reference figures, published by others", cells, found, reference_note())


def _from_cells(
    key: str, title: str, cells: Mapping[str, Callable[[Row], str]], rows: Sequence[Row], note: str = ""
) -> Table:
    filled = [[cell(row) for cell in cells.values()] for row in rows]
    empty = {
        index
        for index in range(len(cells))
        if filled and all(row[index] in ("-", "") for row in filled)  # nothing was measured: no column
    }
    heads = [head for index, head in enumerate(cells) if index not in empty]
    return Table(key, title, heads, [[c for i, c in enumerate(row) if i not in empty] for row in filled], note)


def _seeds(arm: Arm) -> str:
    seeds = arm["seeds"]
    return "1 (one seed)" if len(seeds) == 1 else f"{len(seeds)} ({', '.join(map(str, seeds))})"


def _cell(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 40 else f"{text[:37]}..."

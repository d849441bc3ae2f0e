"""Contents of a comparison's tables: columns, cells and notes, independent of any format."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from harness.compare.columns import (
    ROLE_NOTE,
    Table,
    behaviour,
    cost,
    evidence,
    references_of,
    role_tables,
)
from harness.compare.keys import Arm, Comparison, View
from harness.compare.numbers import interval, number, p_value, points, with_interval
from harness.compare.one_way_intervals import disagreeing
from harness.compare.references import Reference
from harness.compare.sampled import title
from harness.compare.verdicts import measure_text, verdict_text
from harness.util.formatting import measured


def tables(comparison: Comparison, references: Sequence[Reference] = ()) -> list[Table]:
    """Return all non-empty tables of a comparison, in reading order."""
    first = (_accuracy, _sampled, _learning, _agreement, _reward_parts, behaviour, cost, evidence)
    later = (_sides, _starts, _checkpoints, _views, _exceptions, _failed)
    made = [make(comparison) for make in (*first, *later)]
    note = (
        f"{ROLE_NOTE * (comparison['kind'] == 'train')}"
        "Means over seeds, intervals: 95 %, for new seeds."
    )
    made[6:6] = role_tables(comparison["by_role"], comparison["baseline"], note)
    made.append(references_of(references))
    return [table for table in made if table.rows]


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
                "difference (points)": "identical"
                if same
                else with_interval(pair["difference"], signed=True),
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
    return _of_rewards(
        comparison, Table("accuracy", "", heads, [[row[head] for head in heads] for row in rows])
    )


def _of_rewards(comparison: Comparison, table: Table) -> Table:
    """Return a table of accuracy, or of graded rewards in hundredths without percent."""
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
    heads = [
        head.replace(" %", "") if head != "failed by agent %" else head for head in table.heads
    ]
    heads = [
        "value" if head == "%" else head.replace("wrong to right", "lowest to highest")
        for head in heads
    ]
    return replace(
        table, title=f"{heading}, in hundredths", heads=heads, note=note.replace(" in %", "")
    )


def _sampled(comparison: Comparison) -> Table:
    """Return a table with one row per measure and arm."""
    several = comparison.get("sampled")
    heads = ["arm", "measure", "%", *(("difference (points)", "p") if comparison["pairs"] else ())]
    if several is None:
        return Table("sampled", "", heads, [])
    rows = []
    for arm, found in several["arms"].items():
        for key in several["measures"]:
            cells = [
                arm,
                title(key, comparison.get("graded", False)),
                with_interval(found[key]["estimate"]),
            ]
            if comparison["pairs"] and arm == comparison["baseline"]:
                cells += ["baseline", ""]
            elif comparison["pairs"]:
                cells += [
                    with_interval(found[key]["difference"], signed=True),
                    p_value(found[key].get("p_holm")),
                ]
            rows.append(cells)
    note = f"{several['samples']} samples a task, by task and seed, then means."
    if comparison["pairs"]:
        note += " p values are corrected over this table."
    if any(several["short"].values()):
        short = ", ".join(f"{arm} {count}" for arm, count in several["short"].items() if count)
        note += f" Fewer of them scored: {short}; measures of k leave out tasks with fewer than k."
    return _of_rewards(comparison, Table("sampled", "", heads, rows, note))


def _learning(comparison: Comparison) -> Table:
    measures = comparison["learning"]["measures"]
    heads = ["arm"]
    for key in measures:
        heads += [
            f"{measure_text(key, comparison)} %",
            *(("difference (points)", "p") if comparison["pairs"] else ()),
        ]
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
                    cells += [
                        with_interval(one["difference"], signed=True),
                        p_value(one.get("p_holm")),
                    ]
        rows.append(cells)
    note = (
        "Area under the curve: accuracy, "
        "averaged over the steps from the first validation to the last."
    )
    if comparison["pairs"]:
        note = (
            f"Secondary: p values are corrected over this table, and no verdict rests on it. {note}"
        )
    return _of_rewards(comparison, Table("learning", "", heads, rows if measures else [], note))


def _agreement(comparison: Comparison) -> Table:
    rows = [
        [
            name,
            *map(
                points, (one["start"], one["first"], one["training"], one["end"], one["gradient"])
            ),
            "-" if not one["steps"] else "never" if one["parted"] is None else f"{one['parted']}",
            f"{one['draws']:,}",
        ]
        for name, one in comparison["agreement"].items()
        if one["draws"]
    ]
    heads = ["arm", "before training %", "first step %", "all steps %", "last validation %"]
    heads += ["gradient norm, largest difference %", "first divergent step", "rollouts compared"]
    note = (
        "Share of rollouts with the very same answer as the baseline's, "
        "of the same seed, task and step. "
        "First divergent step: of any seed, the first "
        "in which an answer or the norm of the gradient differs. Every "
        "step is in `--format json`."
    )
    if any(arm["gpu_hours"] for arm in comparison["arms"]):
        note += (
            " On a GPU rounding may depend on what else is in a batch "
            "from the first call on: two runs of one agent "
        )
        note += "may give less than 100 too."
    return Table("agreement", f"Same answers as {comparison['baseline']}", heads, rows, note)


def _reward_parts(comparison: Comparison) -> Table:
    arms = comparison["arms"]
    parts = list(dict.fromkeys(part for arm in arms for part in arm["reward_parts"]))
    rows = [
        [arm["name"], *(number(arm["reward_parts"].get(part), 3) for part in parts)] for arm in arms
    ]
    note = "Means over the verdicts that have the part, then over seeds."
    if comparison["kind"] == "train":
        note = f"Last validation: {note[0].lower()}{note[1:]}"
    return Table(
        "reward_parts", "Parts of the reward", ["arm", *parts], rows if parts else [], note
    )


def _sides(comparison: Comparison) -> Table:
    """Differences that seeds alone would decide and clusters alone would not, or the other way."""
    rows = []
    for pair in disagreeing(comparison["pairs"], comparison["alpha"]):
        cells = [pair["arm"], points(pair["difference"]["mean"], signed=True)]
        for side in (pair["sides"]["seeds"], pair["sides"]["clusters"]):
            cells += [interval((side["low"], side["high"])), p_value(side["p_holm"])]
        rows.append([*cells, p_value(pair["p_holm"])])
    several = any("starts" in pair for pair in comparison["pairs"])
    counted = "starts" if several else "seeds"
    heads = [
        "arm against baseline",
        "difference (points)",
        f"{counted} alone",
        "p",
        "clusters alone",
    ]
    note = (
        f"Shown where one side alone would decide and the other would not. "
        f"{counted.capitalize()} alone: for other "
        "trainings on these very questions. Clusters alone: "
        "for other questions, answered by these very trainings. "
        "The verdict takes both."
    )
    title = f"{counted.capitalize()} alone, clusters alone"
    return Table("sides", title, [*heads, "p", "p of the verdict"], rows, note)


def _starts(comparison: Comparison) -> Table:
    """The policies that trainings began with, and the differences from each."""
    found = comparison.get("starts", [])
    arms = [pair["arm"] for pair in comparison["pairs"]] if len(found) > 1 else []
    rows = [
        [
            f"{one['policy']} ({one['model'][:8]})",
            one["made_by"] or "-",
            str(one["trainings"]),
            *(with_interval(one["differences"].get(arm), signed=True) for arm in arms),
        ]
        for one in found
    ]
    heads = ["start", "made by", "trainings", *(f"{arm}: difference (points)" for arm in arms)]
    if arms:
        note = (
            "Intervals of a start are for other seeds from it; "
            "the verdict is for other starts. A recipe that is run again "
            "makes another start."
        )
    else:
        note = (
            "One start: intervals hold for other seeds from it, not for another start, "
            "which the same recipe "
            "would make. To learn of others, "
            "repeat the study from several and compare all with `--allow model`."
        )
    return Table("starts", "Starts", heads, rows, note)


def _checkpoints(comparison: Comparison) -> Table:
    """Return item-level statistics for one seed; with several, seeds would count as questions."""
    rows = []
    for pair in comparison["pairs"]:
        if pair["one_seed"]:
            tests = pair["item"]["mcnemar"]
            counts = "; ".join(
                f"{one['only_first']}:{one['only_second']} p {p_value(one['p'])}" for one in tests
            )
            rows.append([pair["arm"], counts or "-", interval(pair["item"]["cluster_bootstrap"])])
    heads = ["arm against baseline", "McNemar", "bootstrap over clusters"]
    note = (
        "Good for one thing: whether these very checkpoints answer differently, "
        "on questions (McNemar) or clusters of "
        "them like these. Of other trainings it says nothing, and no verdict rests on it."
    )
    if all(
        counts == "-" for _, counts, _ in rows
    ):  # graded or paired by task: there are no right and wrong answers to count
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
    same = {pair["arm"] for pair in comparison["pairs"] if pair["identical"]} | {
        comparison["baseline"]
    }
    for arm in comparison["arms"]:
        cells = []
        for view in found:
            one = view["arms"][arm["name"]]
            cells.append(points(one["accuracy"]))
            if view["budget"] is not None:
                told = "baseline" if arm["name"] == comparison["baseline"] else "identical"
                cells.append(
                    told if arm["name"] in same else with_interval(one["difference"], signed=True)
                )
        roles = ", ".join(
            f"{role} {number(one['transitions'], 0)}"
            for role, one in arm["trained_by_role"].items()
        )
        rows.append(
            [
                arm["name"],
                *cells,
                number(arm["optimizer_steps"], 0),
                number(arm["trained_tokens"], 0),
                roles or number(arm["trained_transitions"], 0),
            ]
        )
    note = (
        "Accuracy in % of the last validation within the budget "
        "of the run that used least; means over seeds."
    )
    if comparison["pairs"]:
        note += (
            " One budget says nothing of others. "
            "Intervals are not corrected, and no verdict rests on them."
        )
    return _of_rewards(comparison, Table("views", "", heads, rows, note))


def _view_heads(view: View) -> list[str]:
    if view["budget"] is None:
        return ["as configured %"]
    what = "optimizer steps" if view["key"] == "equal_optimizer_steps" else "trained tokens"
    return [f"at {view['budget']:,} {what} %", "difference (points)"]


def _exceptions(comparison: Comparison) -> Table:
    rows = []
    for one in comparison["exceptions"]:
        values = one.get("said") or list(
            dict.fromkeys(_cell(value) for value in one["values"].values())
        )
        why = "varied by the study" if one["why"] == "varied" else "allowed by --allow"
        rows.append([one["key"], why, "; ".join(values)])
    return Table("exceptions", "Not identical, with permission", ["key", "why", "values"], rows)


def _failed(comparison: Comparison) -> Table:
    rows = [
        [one["arm"], str(one["seed"]), one["status"], one["reason"][:160], one["run"]]
        for one in comparison["failed"]
    ]
    return Table(
        "failed",
        "Runs that are not in the comparison",
        ["arm", "seed", "status", "reason", "run"],
        rows,
    )


def _seeds(arm: Arm) -> str:
    seeds = arm["seeds"]
    starts = {run["start"] for run in arm["per_seed"]}
    if len(starts) > 1:
        different = ", ".join(map(str, sorted({*seeds})))
        return f"{len(seeds)} of {len(starts)} starts ({different})"
    return "1 (one seed)" if len(seeds) == 1 else f"{len(seeds)} ({', '.join(map(str, seeds))})"


def _cell(value: object) -> str:
    text = str(value)
    return text if len(text) <= 40 else f"{text[:37]}..."

"""Contents of a comparison's tables: columns, cells and notes, independent of any format."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from harness.compare.columns import (
    ROLE_NOTE,
    Table,
    behaviour,
    cost,
    evidence,
    references_of,
    role_tables,
)
from harness.compare.keys import Comparison
from harness.compare.numbers import interval, number, p_value, points, with_interval
from harness.compare.one_way_intervals import disagreeing
from harness.compare.pairs import counted_in
from harness.compare.references import Reference
from harness.compare.score_tables import (
    accuracy_table,
    gains_table,
    learning_table,
    sampled_table,
    transfer_tables,
    views_table,
)
from harness.util.formatting import shortened

_REASONS = {
    "varied": "varied by the study",
    "allowed": "allowed by --allow",
    "given": "given to this comparison",
    "changed": "changed after runs had finished",
}


def tables(comparison: Comparison, references: Sequence[Reference] = ()) -> list[Table]:
    """Return all non-empty tables of a comparison, in reading order."""
    note = "Means over seeds, intervals: 95 %, for new seeds."
    if comparison["kind"] == "train":
        note = ROLE_NOTE + note
    made = [
        accuracy_table(comparison),
        *transfer_tables(comparison),
        sampled_table(comparison),
        gains_table(comparison),
        learning_table(comparison),
        _agreement(comparison),
        _reward_parts(comparison),
        behaviour(comparison),
        *role_tables(comparison["by_role"], comparison["baseline"], note),
        cost(comparison),
        evidence(comparison),
        _sides(comparison),
        _starts(comparison),
        _checkpoints(comparison),
        views_table(comparison),
        _exceptions(comparison),
        _failed(comparison),
        references_of(references),
    ]
    return [table for table in made if table.rows]


def _agreement(comparison: Comparison) -> Table:
    rows = []
    for name, agreement in comparison["agreement"].items():
        if not agreement["draws"]:
            continue
        shares = (
            agreement["start"],
            agreement["first"],
            agreement["training"],
            agreement["end"],
            agreement["gradient"],
        )
        compared = f"{agreement['draws']:,}"
        if comparison["kind"] == "eval":
            # An evaluation has no steps; its answers are recorded as those before training.
            rows.append([name, points(agreement["start"]), compared])
            continue
        divergent = "never" if agreement["parted"] is None else str(agreement["parted"])
        if not agreement["steps"]:
            divergent = "-"
        rows.append([name, *map(points, shares), divergent, compared])
    if comparison["kind"] == "eval":
        heads = ["arm", "same answers %", "rollouts compared"]
        note = (
            "Share of rollouts with the same answer as the baseline's, of the same seed and task."
        )
    else:
        heads = ["arm", "before training %", "first step %", "all steps %", "last validation %"]
        heads += ["gradient norm, largest difference %", "first divergent step"]
        heads.append("rollouts compared")
        note = (
            "Share of rollouts with the same answer as the baseline's rollout of the same seed, "
            "task and step. First divergent step: the first step in which an answer or the gradient "
            "norm differs in any seed. `--format json` has every step."
        )
    if any(arm["gpu_hours"] for arm in comparison["arms"]):
        note += (
            " On a GPU, rounding depends on the other requests of a batch, so two runs of one "
            "agent may also give less than 100."
        )
    return Table("agreement", f"Same answers as {comparison['baseline']}", heads, rows, note)


def _reward_parts(comparison: Comparison) -> Table:
    parts: dict[str, None] = {}
    for arm in comparison["arms"]:
        parts |= dict.fromkeys(arm["reward_parts"])
    rows = []
    for arm in comparison["arms"]:
        row = [arm["name"]]
        # Arms of a study may have different rewards; a part that an arm lacks is a dash.
        for part in parts:
            row.append(number(arm["reward_parts"].get(part), 3))
        rows.append(row)
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
    counted = counted_in(comparison)
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
    starts = comparison.get("starts", [])
    # With one start, its differences are those of the comparison and need no column.
    arms: list[str] = []
    heads = ["start", "made by", "trainings"]
    for pair in comparison["pairs"] if len(starts) > 1 else ():
        arms.append(pair["arm"])
        heads.append(f"{pair['arm']}: difference (points)")
    rows = []
    for start in starts:
        policy = f"{start['policy']} ({start['model'][:8]})"
        row = [policy, start["made_by"] or "-", str(start["trainings"])]
        for arm in arms:
            row.append(with_interval(start["differences"].get(arm), signed=True))
        rows.append(row)
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
            "would make. To cover others, "
            "repeat the study from several and compare all with `--allow model`."
        )
    return Table("starts", "Starts", heads, rows, note)


def _checkpoints(comparison: Comparison) -> Table:
    """Return item-level statistics for one seed; with several, seeds would count as questions."""
    rows = []
    for pair in comparison["pairs"]:
        if pair["one_seed"]:
            tests = []
            for test in pair["item"]["mcnemar"]:
                counts = f"{test['only_first']}:{test['only_second']}"
                tests.append(f"{counts} p {p_value(test['p'])}")
            bootstrap = interval(pair["item"]["cluster_bootstrap"])
            rows.append([pair["arm"], "; ".join(tests) or "-", bootstrap])
    heads = ["arm against baseline", "McNemar", "bootstrap over clusters"]
    note = (
        "Good for one thing: whether these very checkpoints answer differently, "
        "on questions (McNemar) or clusters of "
        "them like these. Of other trainings it says nothing, and no verdict rests on it."
    )
    # Of graded rewards, and of arms paired by task, there are no right and wrong answers to count.
    if all(tests == "-" for _, tests, _ in rows):
        heads = [heads[0], heads[2]]
        rows = [[arm, bootstrap] for arm, _, bootstrap in rows]
        note = note.replace("questions (McNemar) or clusters of them", "clusters")
    return Table("checkpoints", "These checkpoints alone", heads, rows, note)


def _exceptions(comparison: Comparison) -> Table:
    title = "Not identical, with permission"
    rows = []
    for exempt in comparison["exceptions"]:
        # A hash of questions says nothing to a reader, so such keys bring their own text.
        texts = exempt.get("texts") or _distinct_cells(exempt["values"].values())
        rows.append([exempt["key"], _REASONS[exempt["why"]], "; ".join(texts)])
        if exempt["why"] in ("given", "changed"):
            title = "Not identical, or not stated beforehand"
    return Table("exceptions", title, ["key", "why", "values"], rows)


def _failed(comparison: Comparison) -> Table:
    rows = []
    for run in comparison["failed"]:
        reason = run["reason"][:160]
        rows.append([run["arm"], str(run["seed"]), run["status"], reason, run["run"]])
    heads = ["arm", "seed", "status", "reason", "run"]
    return Table("failed", "Runs that are not in the comparison", heads, rows)


def _distinct_cells(values: Iterable[object]) -> list[str]:
    """Return different values as text, in the order of their first appearance."""
    cells: dict[str, None] = {}
    for value in values:
        cells[shortened(str(value), 40)] = None
    return list(cells)

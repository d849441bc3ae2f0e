"""Tables of accuracy or graded rewards: at the end, by samples, on the way, at equal budgets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from harness.compare.columns import Table
from harness.compare.keys import Arm, Comparison, EstimateData, Pair, Used, View
from harness.compare.numbers import interval, number, p_value, points, with_interval
from harness.compare.pairs import identical_arms, pairs_by_arm
from harness.compare.sampled import title
from harness.compare.verdicts import measure_text, verdict_text
from harness.util.formatting import measured

DIFFERENCE = "difference (points)"
DIFFERENCE_BOUNDS = "difference, unscored against to for"
FAILED_BY_AGENT = "failed by agent %"


def accuracy_table(comparison: Comparison) -> Table:
    """Return the main table: what every arm reached, its difference, and the verdict."""
    by_arm = pairs_by_arm(comparison)
    trained = comparison["kind"] == "train"
    reached = "final" if trained else measured(comparison.get("graded", False))
    bounds = f"{reached} %, unscored wrong to right"
    rows = []
    for arm in comparison["arms"]:
        row = {
            "arm": arm["name"],
            "seeds": _seeds(arm),
            "initial %": with_interval(arm["accuracy_initial"]),
            f"{reached} %": with_interval(arm["accuracy_final"]),
            FAILED_BY_AGENT: points(arm["agent_failed"]),
            bounds: interval(arm["accuracy_bounds"], signed=False),
        }
        # A single arm is compared with nothing, so its table has no columns for that.
        if comparison["pairs"]:
            row |= _difference_cells(by_arm.get(arm["name"]))
        rows.append(row)
    # Columns with nothing but dashes would ask readers to look for a reason.
    absent = {FAILED_BY_AGENT, bounds, DIFFERENCE_BOUNDS}
    if not trained:
        absent.add("initial %")
    for arm in comparison["arms"]:
        if arm["agent_failed"]:
            absent.discard(FAILED_BY_AGENT)
        if arm["accuracy_bounds"] is not None:
            absent -= {bounds, DIFFERENCE_BOUNDS}
    heads = [head for head in rows[0] if head not in absent]
    cells = []
    for row in rows:
        cells.append([row[head] for head in heads])
    return _of_rewards(comparison, Table("accuracy", "", heads, cells))


def _difference_cells(pair: Pair | None) -> dict[str, str]:
    """Return an arm's cells against the baseline; None is the baseline itself."""
    if pair is None:
        return {
            DIFFERENCE: "baseline",
            DIFFERENCE_BOUNDS: "",
            "p": "",
            "p (equivalence)": "",
            "verdict": "",
        }
    cells = {
        DIFFERENCE: with_interval(pair["difference"], signed=True),
        DIFFERENCE_BOUNDS: interval(pair["difference_bounds"]),
        "p": p_value(pair["p_holm"]),
        "p (equivalence)": p_value(pair["p_equivalence_holm"]),
        "verdict": verdict_text(pair),
    }
    # Identical answers were not tested: a p value would look like the evidence for the verdict.
    if pair["identical"]:
        cells |= {DIFFERENCE: "identical", "p": "-", "p (equivalence)": "-"}
    return cells


def _of_rewards(comparison: Comparison, table: Table) -> Table:
    """Return a table of accuracy, or of graded rewards in hundredths without percent."""
    titles = {
        "accuracy": "{} on validation" if comparison["kind"] == "train" else "{}",
        "sampled": "Several samples of each task",
        "learning": "Learning on the way",
        "views": "Comparisons at equal budgets",
        "transfer": "Policies by agent",
        "transfer_differences": "Policies by agent, against the agent's own",
    }
    name = measured(comparison.get("graded", False))
    heading = titles[table.key].format(name.capitalize())
    note = table.note.replace("accuracy", name).replace("Accuracy", name.capitalize())
    if not comparison.get("graded"):
        return replace(table, title=heading)
    heads = [_graded_head(head) for head in table.heads]
    return replace(
        table, title=f"{heading}, in hundredths", heads=heads, note=note.replace(" in %", "")
    )


def _graded_head(head: str) -> str:
    """Return a column's head for graded rewards, which are no share of right answers."""
    # The share of rollouts that the agent failed stays a share.
    if head == FAILED_BY_AGENT:
        return head
    if head == "%":
        return "value"
    return head.replace(" %", "").replace("wrong to right", "lowest to highest")


def sampled_table(comparison: Comparison) -> Table:
    """Return a table with one row per measure and arm."""
    several = comparison.get("sampled")
    compared = bool(comparison["pairs"])
    heads = ["arm", "measure", "%"]
    if compared:
        heads += [DIFFERENCE, "p"]
    if several is None:
        return Table("sampled", "", heads, [])
    graded = comparison.get("graded", False)
    rows = []
    for arm, measures in several["arms"].items():
        for key in several["measures"]:
            learned = measures[key]
            row = [arm, title(key, graded), with_interval(learned["estimate"])]
            if compared and arm == comparison["baseline"]:
                row += ["baseline", ""]
            elif compared:
                row += _tested(learned["difference"], learned.get("p_holm"))
            rows.append(row)
    note = f"{several['samples']} samples a task, by task and seed, then means."
    if compared:
        note += " p values are corrected over this table."
    short: list[str] = []
    for arm, count in several["short"].items():
        if count:
            short.append(f"{arm} {count}")
    if short:
        note += (
            f" Fewer of them scored: {', '.join(short)}; "
            "measures of k leave out tasks with fewer than k."
        )
    return _of_rewards(comparison, Table("sampled", "", heads, rows, note))


def _tested(difference: EstimateData | None, p: float | None) -> list[str]:
    return [with_interval(difference, signed=True), p_value(p)]


def learning_table(comparison: Comparison) -> Table:
    """Return a table of the secondary measures of training; empty without any."""
    measures = comparison["learning"]["measures"]
    compared = bool(comparison["pairs"])
    heads = ["arm"]
    for key in measures:
        heads.append(f"{measure_text(key, comparison)} %")
        if compared:
            heads += [DIFFERENCE, "p"]
    same = identical_arms(comparison)
    rows = []
    for arm in comparison["arms"] if measures else ():
        row = [arm["name"]]
        for key in measures:
            learned = comparison["learning"]["arms"][arm["name"]][key]
            row.append(with_interval(learned["estimate"]))
            if not compared:
                continue
            if arm["name"] == comparison["baseline"]:
                row += ["baseline", ""]
            elif arm["name"] in same:
                row += ["identical", "-"]
            else:
                row += _tested(learned["difference"], learned.get("p_holm"))
        rows.append(row)
    note = (
        "Area under the curve: accuracy, "
        "averaged over the steps between the first and the last validation that all runs have."
    )
    if compared:
        note = (
            f"Secondary: p values are corrected over this table, and no verdict rests on it. {note}"
        )
    return _of_rewards(comparison, Table("learning", "", heads, rows, note))


def gains_table(comparison: Comparison) -> Table:
    """Return a table of each arm's gain, split into format and skill; empty where none fails."""
    heads = ["arm", "failed, initial %", "failed, final %"]
    heads += ["right if executed, initial %", "right if executed, final %"]
    heads += ["gain (points)", "from format (points)", "from skill (points)"]
    rows = []
    for arm, gain in comparison.get("gains", {}).items():
        rows.append(
            [
                arm,
                with_interval(gain["fails_initial"]),
                with_interval(gain["fails_final"]),
                points(gain["right_initial"]),
                points(gain["right_final"]),
                with_interval(gain["gain"], signed=True),
                with_interval(gain["by_format"], signed=True),
                with_interval(gain["by_skill"], signed=True),
            ]
        )
    note = (
        "An answer fails if it is missing or has no result. "
        "From format: the drop in failures, times the mean share, before and after, "
        "of executed answers that are right. "
        "From skill: the rest, which also falls if newly executed answers are harder. "
        "Intervals are not corrected; no verdict rests on them."
    )
    return Table("gains", "Gain by format and skill", heads, rows, note)


def transfer_tables(comparison: Comparison) -> list[Table]:
    """Return tables of policies by agent: accuracy, and the difference to the agent's own arm."""
    used = comparison.get("transfer", {})
    agents: dict[str, None] = {}
    for by_agent in used.values():
        agents |= dict.fromkeys(by_agent)
    accuracies: list[list[str]] = []
    differences: list[list[str]] = []
    for trained, by_agent in used.items():
        row = [trained]
        compared = [trained]
        for agent in agents:
            cell = by_agent.get(agent)
            row.append("-" if cell is None else with_interval(cell["accuracy"]))
            if cell is not None and trained == agent:
                compared.append("baseline")
            else:
                compared.append(_difference_cell(cell))
        accuracies.append(row)
        differences.append(compared)
    heads = ["trained in", *(f"used in {agent}" for agent in agents)]
    note = (
        "Accuracy in % by the arm that trained a policy and the agent that used it; "
        "means over seeds."
    )
    made = [_of_rewards(comparison, Table("transfer", "", heads, accuracies, note))]
    if any(agent in used for agent in agents):
        note = (
            "Differences to the policies that were trained in the same agent, in points, "
            "over common seeds. Intervals are not corrected, and no verdict rests on them. "
            "One seed says nothing about other trainings."
        )
        against = Table("transfer_differences", "", heads, differences, note)
        made.append(_of_rewards(comparison, against))
    return made


def _difference_cell(cell: Used | None) -> str:
    if cell is None or cell["difference"] is None:
        return "-"
    text = with_interval(cell["difference"], signed=True)
    return f"{text}, one seed" if cell["seeds"] == 1 else text


def views_table(comparison: Comparison) -> Table:
    """Return a table of the same trainings under equal budgets."""
    # A single arm has nothing to be equal to: only the view "as configured" is left.
    shown = comparison["views"] if comparison["pairs"] else comparison["views"][:1]
    if not shown:
        return Table("views", "", [], [])
    heads = ["arm"]
    for view in shown:
        heads += _view_heads(view)
    heads += ["optimizer steps", "trained tokens", "trained calls by role"]
    same = identical_arms(comparison)
    rows = []
    for arm in comparison["arms"]:
        row = [arm["name"]]
        for view in shown:
            if view["budget"] is None:
                final = arm["accuracy_final"]
                row.append(points(final["mean"] if final else None))
                continue
            reached = view["arms"].get(arm["name"])
            if reached is None:  # nothing of it is trained that a budget could limit
                row += ["-"] * len(_view_heads(view))
                continue
            row.append(points(reached["accuracy"]))
            if arm["name"] == comparison["baseline"]:
                row.append("baseline")
            elif arm["name"] in same:
                row.append("identical")
            else:
                row.append(with_interval(reached["difference"], signed=True))
        row += [number(arm["optimizer_steps"], 0), number(arm["trained_tokens"], 0)]
        rows.append([*row, _calls_by_role(arm)])
    note = (
        "Accuracy in % of the last validation within the budget "
        "of the run that used least; means over seeds."
    )
    if comparison["pairs"]:
        note += (
            " Results at one budget do not hold for others. "
            "Intervals are not corrected, and no verdict rests on them."
        )
    return _of_rewards(comparison, Table("views", "", heads, rows, note))


def _calls_by_role(arm: Arm) -> str:
    """Return trained calls by role, or their total where roles were not recorded."""
    roles = []
    for role, trained in arm["trained_by_role"].items():
        roles.append(f"{role} {number(trained['transitions'], 0)}")
    return ", ".join(roles) or number(arm["trained_transitions"], 0)


def _view_heads(view: View) -> list[str]:
    if view["budget"] is None:
        return ["as configured %"]
    what = "optimizer steps" if view["key"] == "equal_optimizer_steps" else "trained tokens"
    return [f"at {view['budget']:,} {what} %", DIFFERENCE]


def _seeds(arm: Arm) -> str:
    seeds = arm["seeds"]
    # Starts are what verdicts count, so a number of seeds alone would promise too much.
    starts = {run["start"] for run in arm["per_seed"]}
    if len(starts) > 1:
        return f"{len(seeds)} of {len(starts)} starts ({_listed(sorted({*seeds}))})"
    return "1 (one seed)" if len(seeds) == 1 else f"{len(seeds)} ({_listed(seeds)})"


def _listed(seeds: Sequence[int]) -> str:
    """Return seeds as `0 to 7` if they are consecutive and more than two, else one by one."""
    if len(seeds) > 2 and list(seeds) == list(range(seeds[0], seeds[-1] + 1)):
        return f"{seeds[0]} to {seeds[-1]}"
    return ", ".join(map(str, seeds))

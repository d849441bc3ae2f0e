"""Summaries of a run, for `harness runs show`, `harness runs list` and the end of a command."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from harness.records import AGENT_OUTCOMES
from harness.runs.monitor import so_far, steps_of
from harness.runs.reading import KILLED
from harness.runs.replies import remarks_on
from harness.runs.split_readings import FILE
from harness.util.formatting import (
    answered_by,
    difficulty_order,
    duration,
    failed_itself,
    mean,
    measured,
    members,
    spoilt,
    unparsed,
    unread,
    with_cores,
)
from harness.util.tool_calls import tools_unused

if TYPE_CHECKING:
    from harness.compare.columns import Table
    from harness.runs.folder import RunFolder
    from harness.runs.reading import Run
    from harness.runs.schema import Launch, Study


def facts(one: Run, left_s: float | None = None) -> dict[str, Any]:
    """Return a run's properties and results by name.

    Args:
        left_s: Expected seconds for the rest, as `overview` has them.
    """
    from harness.compare.busy import waited
    from harness.compare.columns import parsed_of
    from harness.compare.measures import chosen_tokens, dialogues, measure
    from harness.compare.numbers import known_digits, number, points

    figures, progress, record = measure(one), one.progress, one.record
    parent, study = record.get("parent"), record.get("study")
    chosen, merged = chosen_tokens(one), dialogues(one)
    curve = [f"{step}: {mean(value, one.graded)}" for step, value in figures["val_curve"].items()]
    # A validation in progress is shown too, since the last complete one may be an hour old.
    if so_far(progress):
        curve.append(f"{progress.validating}: {so_far(progress)}")
    trained = []
    for role, counts in figures["trained_by_role"].items():
        trained.append(f"{role} {counts['transitions']} calls {counts['tokens']} tokens")
    failures = [f"{name} {count}" for name, count in figures["failures"].items()]
    per_call = (
        f"{known_digits([figures['overhead_ms_per_call']])} ms, waiting for the processor included"
    )
    if reasons := waited(one):
        per_call += f" ({reasons})"
    shares = [f"{part} {points(share)} %" for part, share in figures["shares"].items()]
    trains, steps, shown_shares, shown_trained = "", None, None, None
    if one.trained:
        trains = f"trains {record['agent_match']!r}, "
        steps = f"{steps_of(progress)}, {number(figures['step_s'], 1)} s each"
        shown_shares = ", ".join(shares) or "-"
        shown_trained = ", ".join(trained) or "-"
    # Properties that a run does not have are None, and left out below.
    properties = {
        "agent": f"{record['agent']}, {trains}seed {record['seed']}",
        "policy": parent and f"of {parent['run']}, step {parent['step']}",
        "roles": answered_by(record.get("roles", {})) or None,
        "parity": figures["parity"],
        measured(one.graded): ", ".join(curve) or "-",
        "unscored": figures["unscored"],
        "calls per rollout": number(figures["transitions_per_rollout"], 2),
        "tool calls parsed / looked like calls": parsed_of(figures) or None,
        "tool parser": record.get("tool_parser"),
        "rewritten / helped / hurt": f"{figures['rewritten']} / {figures['helped']} / {figures['hurt']}",
        "failures": ", ".join(failures) or "none",
        "steps": steps,
        "share of a step": shown_shares,
        "framework per call": per_call,
        "trained": shown_trained,
        "calls in an earlier's row": merged
        and f"{points(merged[0])} %, which saves {points(merged[1])} % of the tokens",
        "of them with a gradient": None
        if chosen is None
        else f"{chosen} tokens, of the chosen rollouts",
        "time": duration(figures["wall_s"]),
        "left": None if left_s is None else f"about {duration(left_s)}",
        "code": record["commit"]["hash"] if record["commit"] else "no checkout",
        "launches": figures["launches"],
        "study": study and _study(study, record["launches"][-1]),
    }
    return {name: value for name, value in properties.items() if value is not None}


def by_role(one: Run) -> list[Table]:
    """Return a table of its roles, if there are several."""
    from harness.compare.by_role import held_by_role
    from harness.compare.columns import role_tables
    from harness.compare.measures import measure

    return [table for table in role_tables(held_by_role({"": [measure(one)]})) if table.rows]


def overview(run: Run) -> dict[str, Any]:
    """Return the overview that `docs/compare.md` describes."""
    record, progress = run.record, run.progress
    result: Mapping[str, object] = record["result"] or {}
    validating = {
        "step": progress.validating,
        "rollouts": progress.done,
        "of": progress.expected,
        "mean": progress.val_so_far,
    }
    curve = progress.val_curve
    return {
        "id": record["id"],
        "kind": record["kind"],
        "agent": record["agent"],
        "agent_match": record["agent_match"],
        "seed": record["seed"],
        "status": record["status"],
        "abandoned": run.state == KILLED,
        "steps": progress.step,
        "steps_total": record["identity"]["steps"],
        "validating": None if progress.validating is None else validating,
        "left_s": progress.remaining_s,
        "accuracy_initial": result.get(
            "val_accuracy_initial", curve.get(0) if run.trained else None
        ),
        "accuracy_final": result.get("accuracy", result.get("val_accuracy_final")),
        "graded": result.get("graded", progress.graded),
        "wall_s": result.get("wall_s"),
    }


def shown_status(row: Mapping[str, Any]) -> str:
    """Return the status of an overview for people."""
    return KILLED if row["abandoned"] else str(row["status"])


def _study(study: Study, launch: Launch) -> str:
    cores = launch.get("cores")
    shared = f"{study['runs_at_once']} at a time{with_cores(cores)}"
    return f"{study['name']}, {study['job']}, {shared}"


def summary(folder: RunFolder, record: Mapping[str, object]) -> str:
    """Return the final lines of a run's command."""
    return "\n".join(
        (_of_training if record["kind"] == "train" else _of_evaluation)(folder, record)
    )


def _of_training(folder: RunFolder, record: Mapping[str, Any]) -> Iterator[str]:
    from harness.plugins import agent_spec, is_reference

    result, agent = record["result"], record["config"]["agent"]
    graded = result.get("graded", False)
    steps = f"{result['steps']} step{'' if result['steps'] == 1 else 's'}"
    yield f"{record['agent']}: {record['status']} after {steps}, {duration(result['wall_s'])}"
    if of_roles := answered_by(record.get("roles", {})):
        yield of_roles
    if result["val_accuracy_final"] is not None:
        first = mean(result["val_accuracy_initial"], graded)
        last = mean(result["val_accuracy_final"], graded)
        curve = [f"{step}: {mean(value, graded)}" for step, value in result["val_curve"].items()]
        yield (
            f"validation {measured(graded)} {first} -> {last}   "
            f"(by step: {'  '.join(curve)}){spoilt(result)}"
        )
    if result.get("agent_failed"):
        yield f"of the last validation {failed_itself(result, graded)}"
    for remark in remarks_on(result):
        yield f"of the last validation: {remark}"
    if result.get("no_signal"):
        yield f"nothing could be learned: {result['no_signal']}"
        yield f"to try: {ways_out(record)}"
    elif result.get("signal") is not None:
        chosen = record["identity"]["train"]["algorithm"] == "rejection"
        which = "had a rollout good enough" if chosen else "had mixed rewards"
        yield f"{100 * result['signal']:.0f} % of groups {which} (only these teach)"
    if result["rollout_probs_diff_max"] is not None:
        yield (
            "rollout against trainer, largest probability difference: "
            f"{result['rollout_probs_diff_max']:.1e} "
            "(below 0.01 is normal on a CPU, below 0.15 in bf16)"
        )
    if record.get("parity") is None and not is_reference(agent) and agent_spec(agent).strict:
        yield (
            f"no parity certificate: `harness parity {agent}` "
            "makes one, for this run too; without it "
            "`harness compare` cannot compare the run with another agent's"
        )
    following = f"harness report {folder.path}"
    # Without a checkpoint there is no policy to evaluate.
    if record["config"]["train"].get("keep_checkpoints") != 0:
        measured_as = f" --agent {members(agent)[0]}" if len(members(agent)) > 1 else ""
        following += f", harness eval {folder.path}{measured_as}"
    yield f"{folder.path}   (next: {following})"


def _by_difficulty(levels: Mapping[str, Mapping[str, Any]], graded: bool) -> str:
    shown = []
    for level in sorted(levels, key=difficulty_order):
        row = levels[level]
        shown.append(f"{level} {mean(row['accuracy'], graded)} ({row['tasks']})")
    return ", ".join(shown)


def _unscored(outcomes: Mapping[str, int]) -> str:
    shown = []
    for outcome, count in sorted(outcomes.items()):
        # What the agent failed is scored as wrong.
        if outcome != "ok" and outcome not in AGENT_OUTCOMES:
            shown.append(f"{outcome} {count}")
    return ", ".join(shown)


def ways_out(record: Mapping[str, Any]) -> str:
    """Return what to change where nothing could be learned, in one line."""
    identity = record["identity"]
    from harness.policies.catalogue import OWN_QUESTIONS

    if identity["train"].get("algorithm") == "supervised":
        return "larger sampling.max_prompt_tokens and max_response_tokens, or another task set"
    group = int(identity.get("group_size") or 4)
    more = f"more rollouts a group (--set rollout.group_size={2 * group})"
    if ", the highest" in record["result"]["no_signal"]:
        return f"harder questions, or {more}"
    larger = (
        f"a policy that knows more (`harness policy fetch {OWN_QUESTIONS}`, "
        f"then --model {OWN_QUESTIONS}; "
        "training it needs a GPU, measuring it does not)"
    )
    return f"{larger}, another --preset, easier questions, or {more}"


def _of_evaluation(folder: RunFolder, record: Mapping[str, Any]) -> Iterator[str]:
    result = record["result"]
    low, high = result["interval_95"] or (None, None)
    graded = result.get("graded", False)
    name = measured(graded)
    several = result.get("samples")
    measured_on = f"{result['tasks']} tasks"
    if several:
        measured_on = f"{result['tasks'] * several['samples']} rollouts"
    yield (
        f"{record['agent']}: {name} {mean(result['accuracy'], graded)} "
        f"(95 % interval {mean(low, graded)} to {mean(high, graded)}) "
        f"on {result['scored']} scored of "
        f"{measured_on}, {duration(result['wall_s'])}{spoilt(result)}"
    )
    if of_roles := answered_by(record.get("roles", {})):
        yield of_roles
    if several:
        from harness.compare.sampled import lines

        yield "\n".join(lines(several, graded))
    # A single level has the accuracy of the whole.
    if len(result["by_difficulty"]) > 1:
        yield f"by difficulty: {_by_difficulty(result['by_difficulty'], graded)}"
    if result["empty_golds"]:
        yield (
            f"{result['empty_golds']} of the golds return no row: "
            "an empty answer to them proves little"
        )
    if result["agent_failed"]:
        yield failed_itself(result, graded)
    unread_in, offered_in = result["unread_calls"], result.get("calls_with_tools", 0)
    if unread_in and tools_unused(offered_in, result.get("parsed_calls", 0)):
        yield unparsed(unread_in, result["parsed_calls"], offered_in)
    elif remark := unread(unread_in, result["scored"] + result["unscored"]):
        yield remark
    yield from remarks_on(result)
    if result["unscored"]:
        low, high = result["bounds"]
        yield (
            f"{result['unscored']} unscored ({_unscored(result['outcomes'])}): "
            f"{name} is {mean(low, graded)} to {mean(high, graded)}, "
            f"all {'lowest to highest' if graded else 'wrong to right'}"
        )
    if reading := record.get("reading"):
        before = (
            f"not the first one: {', '.join(reading['earlier'])} read it"
            if reading["earlier"]
            else "the first one"
        )
        yield (
            f"{reading['split']!r} is for one reading at the end; "
            f"of {reading['agent']} with this policy this is "
            f"{before} ({folder.path.parent / FILE})"
        )
    yield str(folder.path)

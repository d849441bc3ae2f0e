"""`harness runs`: find runs, look at one, prove what differs between two."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from harness.cli import complete
from harness.cli.common import emit_json, progress_console, results, table
from harness.errors import UserError, nearest
from harness.layers import flatten
from harness.wording import answered_by, duration, mean, measured, so_far, steps_of, with_cores

if TYPE_CHECKING:
    from harness.compare.runs import Run
    from harness.results.model import Launch, Study

app = typer.Typer(add_completion=False, no_args_is_help=True)
STATUSES = ("finished", "failed", "interrupted", "running")
RunsDir = Annotated[Path, typer.Option(help="The folder of runs; studies inside it are searched too.")]


@app.command("list")
def list_(
    runs_dir: RunsDir = Path("runs"),
    plugin: Annotated[str | None, typer.Option(help="Only runs of this agent.", autocompletion=complete.agents)] = None,
    status: Annotated[
        str | None,
        typer.Option(
            help="Only finished, failed, interrupted or running ones.", autocompletion=complete.one_of(*STATUSES)
        ),
    ] = None,
    json_: complete.Json = False,
) -> None:
    """All runs, oldest first."""
    from harness.compare.runs import find_all

    if status is not None and status not in STATUSES:
        raise UserError(
            f"--status {status}: there is no such status{nearest(status, STATUSES, '.')} One of: {', '.join(STATUSES)}"
        )
    everything = find_all(runs_dir)
    found = [
        run for run in everything if plugin in (None, run.record["agent"]) and status in (None, run.record["status"])
    ]
    if json_:
        emit_json([_summary(run) | {"path": str(run.folder.path)} for run in found])
        return
    if not found:
        asked = {"of agent": plugin, "with status": status}
        which = "".join(f" {how} {value}" for how, value in asked.items() if value is not None)
        advice = f"{len(everything)} others are there" if everything else "Start one: harness train"
        like = nearest(plugin, {run.record["agent"] for run in everything}, ".") if plugin else "."
        progress_console().print(f"no runs{which} under {runs_dir}{like} {advice}")
        return
    rows = [_summary(run) for run in found]
    graded = any(row["graded"] for row in rows)
    reached = "accuracy, or mean reward" if graded else "accuracy"
    heads = ("run", "kind", "agent", "trained roles", "seed", "status", "steps", reached, "time")
    shown = table(*heads, overflow="fold")
    for run, row in zip(found, rows, strict=True):
        validated = max(run.progress.val_curve, default=0)
        accuracy = so_far(run.progress) or mean(row["accuracy_final"], row["graded"])
        if validated and row["status"] == "running" and run.progress.validating is None:
            accuracy = f"{mean(run.progress.val_curve[validated], row['graded'])} after step {validated}"
        if row["accuracy_initial"] is not None:
            accuracy = f"{mean(row['accuracy_initial'], row['graded'])} -> {accuracy}"
        place = run.folder.path.relative_to(runs_dir.absolute())
        cells = (str(place), row["kind"], row["agent"], row["agent_match"], str(row["seed"]), row["status"])
        time = duration(row["wall_s"]) if row["left_s"] is None else f"left {duration(row['left_s'])}"
        shown.add_row(*cells, steps_of(run.progress), accuracy, time)
    results().print(shown)


@app.command()
def show(
    run: Annotated[Path, typer.Argument(help="A run's folder or id.", autocompletion=complete.runs)],
    runs_dir: RunsDir = Path("runs"),
    json_: complete.Json = False,
) -> None:
    """One run: what it is, what came of it, what it may be compared with."""
    from harness.compare.measures import chosen_tokens, dialogues, measure
    from harness.compare.numbers import number, points

    one = _one(run, runs_dir)
    figures, progress = measure(one), one.progress
    row = _summary(one)
    if json_:
        emit_json({**one.record, "figures": figures, "progress": {key: row[key] for key in _PROGRESS}})
        return
    out, record = results(), one.record
    out.print(f"{one.id}   {row['kind']} {row['status']}   {one.folder.path}")
    if record.get("reason"):
        out.print(record["reason"])
    facts: dict[str, Any] = {
        "agent": f"{record['agent']}, trains {record['agent_match']!r}, seed {record['seed']}",
        **({"policy": f"of {parent['run']}, step {parent['step']}"} if (parent := record.get("parent")) else {}),
        **({"roles": said} if (said := answered_by(record.get("roles", {}))) else {}),
        "parity": figures["parity"],
        measured(one.graded): ", ".join(
            [f"{step}: {mean(value, one.graded)}" for step, value in figures["val_curve"].items()]
            + ([f"{progress.validating}: {so_far(progress)}"] if so_far(progress) else [])
        )
        or "-",
        "unscored": figures["unscored"],
        "calls per rollout": number(figures["transitions_per_rollout"], 2),
        "rewritten / helped / hurt": f"{figures['rewritten']} / {figures['helped']} / {figures['hurt']}",
        "failures": ", ".join(f"{name} {count}" for name, count in figures["failures"].items()) or "none",
        "steps": f"{steps_of(progress)}, {number(figures['step_s'], 1)} s each",
        "share of a step": ", ".join(f"{part} {points(share)} %" for part, share in figures["shares"].items()) or "-",
        "framework per call": f"{number(figures['overhead_ms_per_call'], 2)} ms, waiting for the processor included",
        "trained": ", ".join(
            f"{role} {one['transitions']} calls {one['tokens']} tokens"
            for role, one in figures["trained_by_role"].items()
        )
        or "-",
        **(
            {"calls in an earlier's row": f"{points(found[0])} %, which saves {points(found[1])} % of the tokens"}
            if (found := dialogues(one))
            else {}
        ),
        **(
            {"of them with a gradient": f"{chosen} tokens, of the chosen rollouts"}
            if (chosen := chosen_tokens(one)) is not None
            else {}
        ),
        "time": duration(figures["wall_s"]),
        **({"left": f"about {duration(row['left_s'])}"} if row["left_s"] is not None else {}),
        "code": record["commit"]["hash"] if record["commit"] else "no checkout",
        "launches": figures["launches"],
        **({"study": _study(study, record["launches"][-1])} if (study := record.get("study")) else {}),
    }
    for name, value in facts.items():
        out.print(f"{name:26} {value}")
    result = record["result"]
    if result and (several := result.get("samples")):
        from harness.compare.sampled import lines

        out.print("\n".join(lines(several, one.graded)))
    out.print("identity", style="bold")
    for key, value in flatten(record["identity"]).items():
        if not key.startswith(("task_set.databases", "task_set.counts")):
            out.print(f"  {key:32} {value}")


@app.command()
def diff(
    first: Annotated[Path, typer.Argument(help="A run's folder or id.", autocompletion=complete.runs)],
    second: Annotated[Path, typer.Argument(help="Another one.", autocompletion=complete.runs)],
    runs_dir: RunsDir = Path("runs"),
    json_: complete.Json = False,
) -> None:
    """Every field that differs between two runs, and how many are equal."""
    from harness.compare.identity import differences

    one, other = (_one(path, runs_dir) for path in (first, second))
    groups: dict[str, dict[str, tuple[Any, Any]]] = {}
    equal = 0
    for part in ("identity", "config", "versions", "frameworks", "hardware", "commit", "parity", "result"):
        left, right = (flatten(dict[str, Any](run.record).get(part) or {}) for run in (one, other))
        for key in dict.fromkeys([*left, *right]):
            if left.get(key, _ABSENT) == right.get(key, _ABSENT):
                equal += part != "result"
            else:
                groups.setdefault(part, {})[key] = (left.get(key, _ABSENT), right.get(key, _ABSENT))
    decisive = [found.key for found in differences([one, other])]
    if json_:
        emit_json({"runs": [one.id, other.id], "equal": equal, "comparable": not decisive, "differs": groups})
        return
    out = results()
    for part, rows in groups.items():
        shown = table("key", one.id, other.id, title=part)
        for key, (left, right) in rows.items():
            shown.add_row(key, _short(left), _short(right))
        out.print(shown)
    out.print(f"{equal} fields are equal.")
    if decisive:
        out.print(f"Not comparable as they are: {', '.join(decisive)} must be identical.")
    else:
        out.print("Comparable: everything that must be identical is.")


_ABSENT = "(absent)"


def _one(path: Path, runs_dir: Path) -> Run:
    from harness.compare.runs import select

    found = select([path], runs_dir).runs
    if len(found) != 1:
        raise UserError(f"{path} holds {len(found)} runs; name one of them")
    return found[0]


_PROGRESS = ("steps", "steps_total", "validating", "left_s")


def _summary(run: Run) -> dict[str, Any]:
    """What `docs/compare.md` describes."""
    record, progress = run.record, run.progress
    result: Mapping[str, Any] = record["result"] or {}
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
        "steps": progress.step,
        "steps_total": record["identity"]["steps"],
        "validating": None if progress.validating is None else validating,
        "left_s": progress.remaining_s,
        "accuracy_initial": result.get("val_accuracy_initial", curve.get(0) if run.trained else None),
        "accuracy_final": result.get("accuracy", result.get("val_accuracy_final")),
        "graded": result.get("graded", progress.graded),
        "wall_s": result.get("wall_s"),
    }


def _study(study: Study, launch: Launch) -> str:
    cores = launch.get("cores")
    shared = f"{study['runs_at_once']} at a time{f' {with_cores(cores)}' if cores else ''}"
    return f"{study['name']}, {study['job']}, {shared}"


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 80 else f"{text[:77]}..."

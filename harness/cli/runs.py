"""`harness runs`: list runs, show one, and show what differs between two."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from harness.api.loaded import one_run
from harness.api.summaries import by_role, facts, overview, shown_status
from harness.cli import complete
from harness.cli.common import (
    TAKE_ANYTHING,
    add_commands,
    complain,
    emit_json,
    progress_console,
    results,
    table,
)
from harness.cli.runs_table import show_runs
from harness.errors import UserError, how_to_install, nearest
from harness.util.formatting import members, shortened
from harness.util.parsing import flatten

if TYPE_CHECKING:
    from harness.runs.reading import Run

app = typer.Typer(
    add_completion=False, no_args_is_help=True, help="List, show, diff and export runs."
)
STATUSES = ("finished", "failed", "interrupted", "running")
RunsDir = Annotated[
    Path, typer.Option(help="The folder of runs; studies inside it are searched too.")
]


@app.command("list")
def list_(
    runs_dir: RunsDir = Path("runs"),
    agent: Annotated[str | None, complete.agent("Only runs of this agent.")] = None,
    status: Annotated[
        str | None,
        typer.Option(
            help="Only finished, failed, interrupted or running runs.",
            autocompletion=complete.one_of(*STATUSES),
        ),
    ] = None,
    json_: complete.Json = False,
) -> None:
    """List all runs, oldest first, in the columns that fit the terminal; --json has all fields."""
    from harness.runs.reading import find_all

    if status is not None and status not in STATUSES:
        raise UserError(
            f"--status {status}: unknown status{nearest(status, STATUSES, '.')} "
            f"One of: {', '.join(STATUSES)}"
        )
    everything = find_all(runs_dir)
    selected = []
    for run in everything:
        name = run.record["agent"]
        of_agent = agent is None or agent == name or agent in members(name)
        if of_agent and status in (None, run.record["status"]):
            selected.append(run)
    rows = _overviews(selected)
    if json_:
        emit_json([row | {"path": str(run.folder.path)} for run, row in rows])
        return
    if not selected:
        which = f" of agent {agent}" if agent is not None else ""
        which += f" with status {status}" if status is not None else ""
        advice = "Start one: harness train"
        if everything:
            count = len(everything)
            advice = "There is 1 other run" if count == 1 else f"There are {count} other runs"
        like = nearest(agent, {run.record["agent"] for run in everything}, ".") if agent else "."
        progress_console().print(f"no runs{which} under {runs_dir}{like} {advice}")
        return
    show_runs(rows, runs_dir)


def _overviews(runs: Iterable[Run]) -> list[tuple[Run, dict[str, Any]]]:
    """Return runs with their overviews. A run with damaged rows is left out, with a remark."""
    rows = []
    for run in runs:
        try:
            rows.append((run, overview(run)))
        except UserError as error:
            complain(f"harness: left out: {error}")
    return rows


@app.command()
def show(
    run: Annotated[
        Path, typer.Argument(help="A run's folder or id.", autocompletion=complete.runs)
    ],
    runs_dir: RunsDir = Path("runs"),
    json_: complete.Json = False,
) -> None:
    """Show one run: its settings, results and comparability."""
    from harness.compare.formats import show_table
    from harness.compare.measures import measure

    one = one_run(run, runs_dir)
    row = overview(one)
    if json_:
        emit_json(
            {
                **one.record,
                "figures": measure(one),
                "progress": {key: row[key] for key in _PROGRESS},
            }
        )
        return
    out, record = results(), one.record
    out.print(f"{one.id}   {row['kind']} {shown_status(row)}   {one.folder.path}")
    if record.get("reason"):
        out.print(record["reason"])
    for name, value in facts(one, row["left_s"]).items():
        out.print(f"{name:26} {value}")
    for role_table in by_role(one):
        show_table(out, role_table)
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
    first: Annotated[
        Path, typer.Argument(help="A run's folder or id.", autocompletion=complete.runs)
    ],
    second: Annotated[Path, typer.Argument(help="Another one.", autocompletion=complete.runs)],
    runs_dir: RunsDir = Path("runs"),
    json_: complete.Json = False,
) -> None:
    """List every field that differs between two runs, and count the equal ones."""
    from harness.compare.identity import differences

    one, other = one_run(first, runs_dir), one_run(second, runs_dir)
    groups: dict[str, dict[str, tuple[Any, Any]]] = {}
    equal = 0
    for part in (
        "identity",
        "config",
        "versions",
        "frameworks",
        "hardware",
        "commit",
        "parity",
        "result",
    ):
        left = flatten(dict[str, Any](one.record).get(part) or {})
        right = flatten(dict[str, Any](other.record).get(part) or {})
        for key in dict.fromkeys([*left, *right]):
            pair = left.get(key, _ABSENT), right.get(key, _ABSENT)
            if pair[0] != pair[1]:
                groups.setdefault(part, {})[key] = pair
            # Equal results are a coincidence, so they do not count.
            elif part != "result":
                equal += 1
    decisive = [difference.key for difference in differences([one, other])]
    if json_:
        emit_json(
            {
                "runs": [one.id, other.id],
                "equal": equal,
                "comparable": not decisive,
                "differs": groups,
            }
        )
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


if "export" not in add_commands(app, "runs"):

    @app.command(
        "export",
        hidden=True,
        context_settings=TAKE_ANYTHING,
    )
    def no_export() -> None:
        """Report which plugin provides the command."""
        raise UserError(
            "the plugin harness-trackers provides `harness runs export`. "
            f"Install it: {how_to_install('cpu')}"
        )


_ABSENT = "(absent)"


_PROGRESS = ("steps", "steps_total", "abandoned", "validating", "left_s")


def _short(value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return shortened(text, 80)

"""`harness power`."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Annotated, Any

import typer

from harness.cli.common import duration, emit_json, results
from harness.errors import UserError

app = typer.Typer()


@app.command()
def power(
    runs: Annotated[list[Path] | None, typer.Argument(help="Runs or studies to learn variances from.")] = None,
    effect: Annotated[float, typer.Option(help="The difference to be found, in points.")] = 5.0,
    power: Annotated[float, typer.Option("--power", help="With which probability it should be found.")] = 0.8,
    alpha: Annotated[float, typer.Option(help="Accepted chance of a false alarm.")] = 0.05,
    baseline: Annotated[str | None, typer.Option(help="The arm that others are held against.")] = None,
    runs_dir: Annotated[Path, typer.Option(help="Where runs are looked for.")] = Path("runs"),
    json_: Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")] = False,
) -> None:
    """How many seeds and questions find an effect of so many points, and what that takes in measured time."""
    from harness.compare.power import plan, variances
    from harness.compare.runs import Run, select

    if not 0 < effect < 100 or not 0 < power < 1 or not 0 < alpha < 1:
        raise UserError("--effect is in points, between 0 and 100; --power and --alpha lie between 0 and 1")
    chosen = select(runs or [runs_dir], runs_dir)
    arms: dict[str, list[Run]] = {}
    for run in chosen.runs:
        if run.finished and len(run.validation()):
            arms.setdefault(run.arm, []).append(run)
    if not arms:
        raise UserError("no finished run to learn from. `harness runs list` shows what there is")
    found = variances(arms, baseline or chosen.study.get("baseline"))
    walls = [
        run.record["result"]["wall_s"] for group in arms.values() for run in group if run.record["result"].get("wall_s")
    ]
    run_s = statistics.median(walls) if walls else None
    rows = plan(found, effect / 100, power, alpha, run_s)
    now = found.detectable(found.seeds, found.databases, found.questions, power, alpha)
    if json_:
        parts = {"seed": found.seed, "database": found.database, "question": found.question}
        data: dict[str, Any] = {"effect": effect / 100, "power": power, "alpha": alpha, "variances": parts}
        emit_json(data | {"source": found.source, "detectable_now": now, "run_s": run_s, "plans": rows})
        return
    _show(found, effect, power, alpha, run_s, rows, now)


def _show(
    found: Any, effect: float, power: float, alpha: float, run_s: float | None, rows: list[dict[str, Any]], now: float
) -> None:
    from rich import box
    from rich.table import Table

    out = results()
    out.print(
        f"Variances from {found.source}: {found.seeds} seeds, {found.databases} databases, {found.questions} questions."
        f" Standard deviation between seeds {100 * found.seed**0.5:.1f}, between databases "
        f"{100 * found.database**0.5:.1f}, between single questions {100 * found.question**0.5:.1f} points.",
        soft_wrap=True,
    )
    out.print(f"As it is, a difference of {100 * now:.1f} points is found with probability {power:g}.")
    title = f"For {effect:g} points, power {power:g}, alpha {alpha:g}, two arms"
    table = Table(box=box.SIMPLE_HEAD, title=title, title_justify="left")
    for head in ("databases", "questions", "seeds", "runs", "machine time"):
        table.add_column(head, justify="right")
    for row in rows:
        seeds = "no number is enough" if row["seeds"] is None else str(row["seeds"])
        cells = (str(row["questions"]), seeds, str(row["runs"] or "-"), duration(row["machine_s"]))
        table.add_row(str(row["databases"]), *cells)
    out.print(table)
    if run_s is not None:
        out.print(f"By the measured {duration(run_s)} of a run. More questions cost validation time beyond that.")

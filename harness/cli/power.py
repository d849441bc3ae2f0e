"""`harness power`."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from harness.cli import complete
from harness.cli.common import emit_json, results, table
from harness.errors import UserError
from harness.wording import duration, mean

if TYPE_CHECKING:
    from harness.compare.keys import Plan
    from harness.compare.power import Variances

app = typer.Typer(add_completion=False)


@app.command()
def power(
    runs: Annotated[
        list[Path] | None, typer.Argument(help="Runs or studies to learn variances from.", autocompletion=complete.runs)
    ] = None,
    effect: Annotated[float, typer.Option(help="The difference to be found, in points.")] = 5.0,
    power: Annotated[float, typer.Option("--power", help="With which probability it should be found.")] = 0.8,
    alpha: Annotated[float, typer.Option(help="Accepted chance of a false alarm.")] = 0.05,
    arms: Annotated[
        int | None, typer.Option(help="Arms that the study holds against its baseline; by default those given.")
    ] = None,
    margin: Annotated[
        float | None, typer.Option(help="Margin of equivalence, e.g. 0.05; a study states its own.")
    ] = None,
    baseline: Annotated[str | None, typer.Option(help="The arm that others are compared with.")] = None,
    runs_dir: Annotated[Path, typer.Option(help="Where runs are looked for.")] = Path("runs"),
    json_: complete.Json = False,
) -> None:
    """How many seeds and questions find an effect of so many points, and what that takes in measured time."""
    from harness.compare.comparison import CEILING
    from harness.compare.estimates import seeds_for_equivalence
    from harness.compare.power import plan, variances
    from harness.compare.runs import Run, select
    from harness.compare.scores import scores, span_of

    if not 0 < power < 1 or not 0 < alpha < 1:
        raise UserError("--power and --alpha lie between 0 and 1")
    chosen = select(runs or [runs_dir], runs_dir)
    found_arms: dict[str, list[Run]] = {}
    for run in chosen.runs:
        if run.finished and len(run.validation()):
            found_arms.setdefault(run.arm, []).append(run)
    if not found_arms:
        raise UserError("no finished run to learn from. `harness runs list` shows what there is")
    family = max(len(found_arms) - 1, 1) if arms is None else arms
    margin = chosen.study.get("margin") if margin is None else margin
    pilots = [run for group in found_arms.values() for run in group]
    graded, (least, most) = any(run.graded for run in pilots), span_of(pilots)
    width = most - least
    if not 0 < effect < 100 * width:
        raise UserError(f"--effect is in points, between 0 and {100 * width:g}, got {effect:g}")
    if family < 1 or (margin is not None and not 0 < margin < width):
        raise UserError(f"--arms is 1 or more; a margin lies between 0 and {width:g} (0.05 is 5 points)")
    found = variances(found_arms, baseline or chosen.study.get("baseline"))
    walls = [result["wall_s"] for result in (run.record["result"] for run in pilots) if result and result.get("wall_s")]
    run_s = statistics.median(walls) if walls else None
    strictest = alpha / family  # Holm's first step, which every arm passes in the worst case
    rows = plan(found, effect / 100, power, strictest, run_s)
    now = found.detectable(found.seeds, found.sizes, power, strictest)
    equivalence = None if margin is None else seeds_for_equivalence(margin / width, family, alpha)
    lowest = min(cast(float, scores([run])["value"].mean()) for run in pilots)
    ceiling = (lowest - least) / width > CEILING or most - lowest < effect / 100
    if json_:
        parts = {name: getattr(found, name) for name in ("seed", "cluster", "question", "cell", "score")}
        data: dict[str, Any] = {"effect": effect / 100, "power": power, "alpha": alpha, "variances": parts}
        data |= {"family": family, "margin": margin, "seeds_for_equivalence": equivalence, "ceiling": ceiling}
        emit_json(data | {"source": found.source, "detectable_now": now, "run_s": run_s, "plans": rows})
        return
    if graded:
        results().print(f"Rewards are graded, from {least:g} to {most:g}: a point is a hundredth of mean reward.")
    _show(found, effect, power, alpha, family, run_s, rows, now)
    if margin is not None:
        results().print(
            f"Showing equivalence within {100 * margin:g} points needs {equivalence} seeds or more, if none collapses."
        )
    if ceiling:
        results().print(
            f"Ceiling: every run ends at {mean(lowest, graded)} or more. What is left to gain is less than such an "
            "effect, and scores vary less there than on a harder set: these figures are too good for one."
        )


def _show(
    found: Variances,
    effect: float,
    power: float,
    alpha: float,
    family: int,
    run_s: float | None,
    rows: list[Plan],
    now: float,
) -> None:
    out = results()
    out.print(
        f"Variances from {found.source}: {found.seeds} seeds, {found.questions} questions in {len(found.sizes)} "
        f"clusters. Standard deviation between seeds {100 * found.seed**0.5:.1f}, between clusters "
        f"{100 * found.cluster**0.5:.1f}, between questions {100 * found.question**0.5:.1f}, between single scores "
        f"{100 * (found.cell + found.score) ** 0.5:.1f} points."
    )
    out.print(f"As it is, a difference of {100 * now:.1f} points is found with probability {power:g}.")
    against = "one arm" if family == 1 else f"each of {family} arms (Holm)"
    title = f"For {effect:g} points, power {power:g}, alpha {alpha:g}, {against} against the baseline; runs of two arms"
    shown = table("clusters", "questions", "seeds", "runs", "machine time", title=title, justify="right")
    for row in rows:
        seeds = "no number is enough" if row["seeds"] is None else str(row["seeds"])
        cells = (str(row["questions"]), seeds, str(row["runs"] or "-"), duration(row["machine_s"]))
        shown.add_row(str(row["clusters"]), *cells)
    out.print(shown, soft_wrap=False)
    if len(found.sizes) == 1:
        out.print(
            "One cluster: by how much others differ is not known, so none are added, and what is found holds for "
            "questions like these."
        )
    if run_s is not None:
        out.print(f"By the measured {duration(run_s)} of a run. More questions cost validation time beyond that.")

"""`harness power`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from harness.cli import complete
from harness.cli.common import emit_json, results, table
from harness.compare.power import MOST_SEEDS
from harness.compare.selection import select
from harness.errors import UserError
from harness.util.formatting import duration, mean
from harness_power_analysis.planning import Planned, planned

LEAST_ALPHA = 1e-12
"""Quantiles of smaller levels lose all digits, or are infinite."""
app = typer.Typer(add_completion=False)


@app.command()
def power(
    runs: Annotated[
        list[Path] | None,
        typer.Argument(
            help="Runs or studies to estimate variances from.", autocompletion=complete.runs
        ),
    ] = None,
    effect: Annotated[float, typer.Option(help="The difference to detect, in points.")] = 5.0,
    power: Annotated[float, typer.Option("--power", help="Probability of detecting it.")] = 0.8,
    alpha: Annotated[float, typer.Option(help="Accepted probability of a false alarm.")] = 0.05,
    arms: Annotated[
        int | None,
        typer.Option(
            help="Number of arms to compare with the baseline; by default that of the given runs."
        ),
    ] = None,
    margin: Annotated[
        float | None, typer.Option(help="Margin of equivalence, e.g. 0.05; by default the study's.")
    ] = None,
    baseline: Annotated[
        str | None, typer.Option(help="The arm that others are compared with.")
    ] = None,
    runs_dir: Annotated[Path, typer.Option(help="Folder of the runs.")] = Path("runs"),
    json_: complete.Json = False,
) -> None:
    """Compute how many seeds and questions detect an effect, and their measured cost."""
    if not 0 < power < 1 or not 0 < alpha < 1:
        raise UserError("--power and --alpha lie between 0 and 1")
    if alpha / max(arms or 1, 1) < LEAST_ALPHA:
        raise UserError(
            f"--alpha divided by --arms is at least {LEAST_ALPHA:g}: "
            "the quantiles of smaller ones cannot be computed"
        )
    if not runs and not runs_dir.is_dir():
        raise UserError(
            f"there are no runs in {runs_dir} to estimate variances from. Start some: harness study"
        )
    found = planned(
        select(runs or [runs_dir], runs_dir), effect / 100, power, alpha, arms, margin, baseline
    )
    if json_:
        names = ("seed", "cluster", "question", "cell", "score")
        parts = {name: getattr(found.variances, name) for name in names}
        emit_json(
            {
                "effect": effect / 100,
                "power": power,
                "alpha": alpha,
                "variances": parts,
                "family": found.family,
                "margin": found.margin,
                "seeds_for_equivalence": found.equivalence,
                "ceiling": found.ceiling,
                "source": found.variances.source,
                "detectable_now": found.now,
                "run_s": found.run_s,
                "plans": found.rows,
                "remarks": found.remarks,
            }
        )
        return
    _show(found, effect, power, alpha)


def _show(planned: Planned, effect: float, power: float, alpha: float) -> None:
    out, found, family = results(), planned.variances, planned.family
    if planned.graded:
        least, most = planned.span
        out.print(
            f"Rewards are graded, from {least:g} to {most:g}: "
            "a point is a hundredth of mean reward."
        )
    out.print(
        f"Variances from {found.source}: {found.seeds} seeds, "
        f"{found.questions} questions in {len(found.sizes)} "
        f"clusters. Standard deviation between seeds {100 * found.seed**0.5:.1f}, between clusters "
        f"{100 * found.cluster**0.5:.1f}, between questions {100 * found.question**0.5:.1f}, "
        "between single scores "
        f"{100 * (found.cell + found.score) ** 0.5:.1f} points."
    )
    out.print(
        f"As it is, a difference of {100 * planned.now:.1f} points "
        f"is detected with probability {power:g}."
    )
    against = "one arm" if family == 1 else f"each of {family} arms (Holm)"
    title = (
        f"For {effect:g} points, power {power:g}, alpha {alpha:g}, "
        f"{against} against the baseline; runs of two arms"
    )
    shown = table(
        "clusters", "questions", "seeds", "runs", "machine time", title=title, justify="right"
    )
    for row in planned.rows:
        seeds = "no number is enough" if row["seeds"] is None else str(row["seeds"])
        cells = (str(row["questions"]), seeds, str(row["runs"] or "-"), duration(row["machine_s"]))
        shown.add_row(str(row["clusters"]), *cells)
    out.print(shown, soft_wrap=False)
    if len(found.sizes) == 1:
        out.print(
            "One cluster: the variance between clusters is unknown, "
            "so none are added, and the result holds for "
            "questions like these."
        )
    if planned.run_s is not None:
        out.print(
            f"By the measured {duration(planned.run_s)} of a run. "
            "More questions cost validation time beyond that."
        )
    if planned.margin is not None:
        needed = (
            f"more than {MOST_SEEDS}" if planned.equivalence is None else str(planned.equivalence)
        )
        out.print(
            f"Showing equivalence within {100 * planned.margin:g} points "
            f"with power {power:g} needs {needed} seeds, "
            "if there is no true difference and none collapses."
        )
    if planned.ceiling:
        out.print(
            f"Ceiling: every run ends at {mean(planned.lowest, planned.graded)} or more. "
            "What is left to gain is less "
            "than such an effect, and scores vary less there than on a harder set: "
            "these figures are too good for one."
        )
    for remark in planned.remarks:
        out.print(remark, markup=False)

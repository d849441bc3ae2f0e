"""`harness reward`: measure how a reward withstands attacks."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from harness.cli import complete
from harness.cli.common import emit_json, results
from harness.errors import ConfigError, RunFailed

if TYPE_CHECKING:
    from harness_sql.rewards.audit import AuditRow
    from harness_sql.rewards.judge_audit import JudgedRow, Label

app = typer.Typer(add_completion=False, no_args_is_help=True, help="Examine rewards.")


@app.callback()
def _group() -> None:
    """Examine rewards."""


@app.command()
def audit(
    reward: Annotated[
        str, typer.Option(help="execution_accuracy or judge.")
    ] = "execution_accuracy",
    config: Annotated[
        Path | None, typer.Option(help="A YAML file with the judge's options.")
    ] = None,
    set_: complete.Settings = None,
    labels: Annotated[
        Path | None,
        typer.Option(
            help="Graded answers to compare a judge with: "
            "JSON lines with question, answer, gold, label."
        ),
    ] = None,
    margin: Annotated[
        float,
        typer.Option(help="Gain above which an attack on a judge succeeds.", min=0.0, max=1.0),
    ] = 0.1,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Replay attacks on a reward and show what they score.

    For execution_accuracy: on a temporary database, next to the reference evaluator's verdicts. For a judge: answers
    that try to get good grades, next to honest ones; --labels adds the judge's agreement with grades by people.

    Exit status 1 if an attack scores, changes a file or gets another verdict than documented; for a judge, also if
    it does not distinguish right from wrong answers.
    """
    if reward == "judge":
        raise typer.Exit(_audit_judge(config, set_ or [], labels, margin, as_json))
    if reward != "execution_accuracy":
        raise ConfigError(
            f"reward {reward!r} has no attacks to replay. Audits: execution_accuracy, judge"
        )
    if config is not None or set_ or labels is not None:
        raise ConfigError(
            "--config, --set and --labels are for a judge: add --reward judge, or leave them out"
        )

    from harness_sql.rewards.audit import audit

    rows = audit()
    failed = [row for row in rows if not row.holds]
    if as_json:
        emit_json([{**asdict(row), "holds": row.holds} for row in rows], indent=None)
    else:
        _print_table(rows, failed)
    if failed:
        raise typer.Exit(1)


def _audit_judge(
    config: Path | None, settings: list[str], labels: Path | None, margin: float, as_json: bool
) -> int:
    from harness.config import load_config
    from harness.plugins import make_reward
    from harness_sql.rewards.judge_audit import CASES, audit_judge, grade_labels, read_labels

    judge = make_reward(load_config(None, config, [*settings, "reward.name=judge"]))
    graded = read_labels(labels) if labels is not None else []

    async def asked() -> Any:
        return await audit_judge(judge, margin), await grade_labels(judge, graded)

    (honest, rows), values = asyncio.run(asked())
    if not rows:
        # No attacks were made, because an honest answer had no value.
        unjudged = [one for one in honest if one.right is None or one.wrong is None]
        raise RunFailed(
            "an honest answer was not judged, so attacks cannot be compared with it: "
            f"{unjudged[0].reason}"
        )
    agreement = _agreement(graded, values) if graded else None
    failed = [row for row in rows if not row.holds]
    distinguishes = all(one.is_separated(margin) for one in honest)
    status = 0 if distinguishes and not failed else 1
    if as_json:
        document = {
            "honest": [{"right": one.right, "wrong": one.wrong} for one in honest],
            "told_apart": distinguishes,
            "attacks": [{**asdict(row), "holds": row.holds} for row in rows],
            "agreement": agreement,
        }
        emit_json(document, indent=None)
        return status
    from rich import box
    from rich.table import Table

    table = Table("answer", "value", "gain", "", box=box.SIMPLE)
    for case, one in zip(CASES, honest, strict=True):
        table.add_row(f"right: {case.right}", f"{one.right:g}")
        table.add_row(f"wrong: {case.wrong}", f"{one.wrong:g}")
    for row in rows:
        table.add_row(row.attack, *_cells(row))
    results().print(table)
    found = sum(row.value is not None for row in failed)
    results().print(
        f"{found} of {len(rows)} attacks gain more than {margin:g} over an honest wrong answer, "
        f"{len(failed) - found} were not judged."
    )
    if not distinguishes:
        results().print(
            "The judge does not tell right from wrong: "
            f"a right answer gains no more than {margin:g} over a wrong one. "
            "Another model or rubric may."
        )
    for name, measure in (agreement or {}).items():
        if name != "unscored":
            low, high = measure["interval_95"]
            results().print(
                f"{name}: {measure['mean']:.3f} (95 % interval {low:.3f} to {high:.3f})"
            )
        elif measure:
            results().print(
                f"{measure} of {len(graded)} labelled answers were not judged and are left out."
            )
    return status


def _cells(row: JudgedRow) -> tuple[str, str, str]:
    """Return the value, the gain and the outcome of an attack as the table shows them."""
    gain = f"{row.gain:+g}"
    if row.value is None:
        return "-", gain, "" if row.holds else f"NOT JUDGED: {row.reason}"
    return f"{row.value:g}", gain, "" if row.holds else "SUCCEEDS"


def _agreement(labels: list[Label], values: list[float | None]) -> dict[str, Any]:
    """Return how the judge's values agree with the labels, with 95 % intervals.

    Questions count as independent.
    """
    import polars as pl

    from harness.compare.estimates import accuracy

    judged: list[Label] = []
    same_side: list[float] = []
    distances: list[float] = []
    for label, value in zip(labels, values, strict=True):
        # An answer that was not judged agrees with nothing; it is counted as unscored below.
        if value is None:
            continue
        judged.append(label)
        same_side.append(float((value >= 0.5) == (label.label >= 0.5)))
        distances.append(abs(value - label.label))
    measures = {"agreement on which side of 0.5": same_side, "mean distance": distances}
    agreement: dict[str, object] = {}
    for name, scores in measures.items():
        # Each answer is a task of its own; answers to one question count as a cluster.
        rows = []
        for number, (label, score) in enumerate(zip(judged, scores, strict=True)):
            rows.append((0, label.question, str(number), score))
        mean = accuracy(pl.DataFrame(rows, ["seed", "cluster", "task_id", "value"], orient="row"))
        if mean is None:
            raise RunFailed(
                "none of the labelled answers was judged, so nothing is known of the agreement"
            )
        interval = [mean.low, mean.high]
        agreement[name] = {"mean": mean.mean, "interval_95": interval, "labels": len(rows)}
    return agreement | {"unscored": len(labels) - len(judged)}


def _print_table(rows: list[AuditRow], failed: list[AuditRow]) -> None:
    from rich import box
    from rich.table import Table

    table = Table("attack", "here", "reference", "flags", "time", box=box.SIMPLE)
    for row in rows:
        here = "unscored" if row.value is None else f"{row.value:g}"
        mark = "" if row.holds else "  BROKEN"
        table.add_row(
            row.attack, here + mark, row.reference, ", ".join(row.flags), f"{row.elapsed_s:.2f} s"
        )
    results().print(table)
    results().print(
        f"{len(rows) - len(failed)} of {len(rows)} as documented; no file changed by them."
    )

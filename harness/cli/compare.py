"""`harness compare`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from harness.cli import complete
from harness.cli.common import one_thread, progress_console, results
from harness.compare import compare as compare_runs
from harness.compare.format_names import FORMATS, known_format
from harness.errors import UserError
from harness.runs.output import write_output
from harness.util.formatting import printable, printable_json

app = typer.Typer(add_completion=False)
UNUSED_PRICE = "prices are left out: only a table on the terminal and --brief show them"


@app.command()
def compare(
    runs: Annotated[
        list[Path],
        typer.Argument(
            help="Runs, folders of runs, or a study (its file or folder).",
            autocompletion=complete.runs,
        ),
    ],
    baseline: complete.Baseline = None,
    form: Annotated[
        str,
        typer.Option(
            "--format",
            help=f"One of {', '.join(FORMATS)}.",
            autocompletion=complete.one_of(*FORMATS),
        ),
    ] = "table",
    allow: Annotated[
        list[str] | None,
        typer.Option(
            help="Compare runs that differ in this key, such as train.learning_rate; "
            "also: parity, unused_tools. Repeatable."
        ),
    ] = None,
    margin: Annotated[
        float | None,
        typer.Option(help="Margin of equivalence, e.g. 0.05; by default the study's."),
    ] = None,
    brief: Annotated[
        bool,
        typer.Option("--brief", help="Print only one sentence, one table and one picture."),
    ] = False,
    price_in: complete.PriceIn = None,
    price_out: complete.PriceOut = None,
    references: complete.References = None,
    runs_dir: Annotated[Path, typer.Option(help="Folder of runs that are given by id.")] = Path(
        "runs"
    ),
    out: Annotated[Path | None, typer.Option(help="Write to this file instead of stdout.")] = None,
) -> None:
    """Compare runs: differences with confidence intervals, verdicts and costs."""
    from harness.compare.brief import answer
    from harness.compare.costs import price_of
    from harness.compare.formats import brief_text, show, show_brief

    one_thread()
    known_format(form)
    price = price_of(price_in, price_out)
    if brief and form not in ("table", "md"):
        raise UserError(f"--brief is text, and --format {form} is the whole: leave one of them out")
    if price is not None and not brief and (form != "table" or out is not None):
        progress_console().print(UNUSED_PRICE)
    comparison = compare_runs(
        runs,
        baseline=baseline,
        allow=allow or [],
        margin=margin,
        references=references,
        runs_dir=runs_dir,
    )
    if form == "table" and out is None:
        if brief:
            show_brief(results(), comparison.data, price)
            return
        results().print(answer(comparison.data, price), style="bold", markup=False, soft_wrap=False)
        show(results(), comparison.data, comparison.references)
        return
    text = brief_text(comparison.data, price) if brief else comparison.render(form)
    # Names in records may hold control characters, which a terminal would obey.
    if out is None:
        sys.stdout.write(printable_json(text) if form == "json" else printable(text))
        return
    write_output(out, text)
    progress_console().print(f"wrote {out}")

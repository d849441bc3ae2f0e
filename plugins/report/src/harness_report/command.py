"""`harness report`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from harness.cli import complete
from harness.cli.common import one_thread, results
from harness.compare.selection import Selection, select
from harness.compare.states import STUDY_FILE
from harness.errors import UserError
from harness_report.page import EPISODES, write_report

app = typer.Typer(add_completion=False)


@app.command()
def report(
    runs: Annotated[
        list[Path],
        typer.Argument(
            help="A run, several, a folder of runs, or a study (file or folder).",
            autocompletion=complete.runs,
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(help="The file; by default report.html in the run's or study's folder."),
    ] = None,
    baseline: complete.Baseline = None,
    allow: Annotated[
        list[str] | None, typer.Option(help="Compare runs that differ in this key; repeatable.")
    ] = None,
    margin: Annotated[
        float | None, typer.Option(help="Margin of equivalence, e.g. 0.05; by default the study's.")
    ] = None,
    episodes: Annotated[
        int, typer.Option(min=0, help="Maximum number of episodes to browse.")
    ] = EPISODES,
    references: complete.References = None,
    runs_dir: Annotated[Path, typer.Option(help="Folder of runs that are given by id.")] = Path(
        "runs"
    ),
) -> None:
    """Write one HTML file that opens without a network: curves, costs, failures, episodes, manifest."""
    one_thread()
    chosen = select(runs, runs_dir)
    if out is None:
        out = _folder_of(chosen, len(runs)) / "report.html"
    written = write_report(
        chosen,
        out,
        baseline=baseline,
        allow=allow or [],
        margin=margin,
        episodes=episodes,
        references=references,
    )
    results().out(str(written))


def _folder_of(selection: Selection, named: int) -> Path:
    """Return the folder of a run, a study or a folder of runs.

    Args:
        named: Number of paths on the command line.

    Raises:
        UserError: Several runs that have no folder of their own.
    """
    if len(selection.runs) == 1:
        folders = {selection.runs[0].folder.path}
    else:
        folders = {run.folder.path.parent for run in selection.runs}
    # Some runs of a folder are not the folder: their report would pass for one of all its runs.
    of_study = any((folder / STUDY_FILE).is_file() for folder in folders)
    if len(folders) > 1 or (named > 1 and not of_study):
        raise UserError(
            f"{len(selection.runs)} runs have no folder of their own for one report. "
            "Name its file, for example --out report.html"
        )
    return folders.pop()

"""`harness runs export`."""

from __future__ import annotations

from inspect import signature
from pathlib import Path
from typing import Annotated

import typer

from harness.cli import complete
from harness.cli.common import results
from harness.errors import PluginError, UserError, nearest
from harness.plugins import load, registry


def export(
    run: Annotated[
        Path, typer.Argument(help="A run's folder or id.", autocompletion=complete.runs)
    ],
    to: Annotated[
        str,
        typer.Option(
            help="A tracker, for example tensorboard, wandb, mlflow or swanlab; or hf, a data set."
        ),
    ],
    where: Annotated[
        str, typer.Option(help="Folder or address of the tracker; by default its own.")
    ] = "",
    push: Annotated[
        str | None, typer.Option(help="For hf: the data set to create on the Hub, USER/NAME.")
    ] = None,
    licence: Annotated[
        str | None, typer.Option(help="For hf: the data set's licence in the Hub's format.")
    ] = None,
    runs_dir: Annotated[
        Path, typer.Option(help="The folder of runs, including studies in it.")
    ] = Path("runs"),
) -> None:
    """Export a run to a tracker: curves, configuration, final figures, sample episodes.

    Or export it as a data set.
    """
    from harness.api.loaded import one_run

    trackers = {spec.name: spec for spec in registry().specs("tracker")}
    if to not in trackers:
        raise UserError(
            f"--to {to}: there is no such tracker{nearest(to, trackers, '.')} "
            f"One of: {', '.join(sorted(trackers))}"
        )
    # Only given options are passed, so that an exporter without them can refuse those alone.
    options = {}
    if push is not None:
        options["push"] = push
    if licence is not None:
        options["licence"] = licence
    try:
        exporter = load(trackers[to])
        if foreign := sorted(options.keys() - signature(exporter).parameters.keys()):
            raise UserError(f"--{foreign[0]}: --to {to} has no such option")
        loaded = one_run(run, runs_dir)
        place = exporter(loaded, where, **options)
    except (ImportError, PluginError) as error:
        package = registry().origin(trackers[to])
        raise UserError(f"--to {to}: {error}. Install {package}[{to}]") from error
    except OSError as error:
        raise UserError(f"--to {to}: {error}. Name another place with --where") from error
    results().print(f"{loaded.id} is in {to}: {place}")

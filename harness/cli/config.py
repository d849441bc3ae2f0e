"""`harness config`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from harness.cli import complete
from harness.cli.common import emit_json, results
from harness.config import load_config, presets

app = typer.Typer(
    add_completion=False, no_args_is_help=True, help="Show presets and resolved configurations."
)


@app.command("list")
def list_presets(
    json_: Annotated[bool, typer.Option("--json", help="Print as JSON.")] = False,
) -> None:
    """List the presets."""
    available = presets()
    if json_:
        emit_json(available)
        return
    for name, summary in available.items():
        results().print(f"{name:16} {summary}")


@app.command()
def show(
    preset: Annotated[
        str | None, typer.Argument(help="A preset.", autocompletion=complete.presets)
    ] = None,
    config: Annotated[Path | None, typer.Option(help="A YAML file.")] = None,
    set_: complete.Settings = None,
    json_: Annotated[bool, typer.Option("--json", help="Print as JSON.")] = False,
) -> None:
    """Print the configuration that a preset, a file and settings resolve to."""
    from harness.cli.train import show_config

    show_config(load_config(preset, config, set_ or []), json_)

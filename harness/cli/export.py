"""`harness export`."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Annotated

import typer

from harness.cli.common import emit_json, results
from harness.errors import UserError
from harness.results.folder import RunFolder

app = typer.Typer()


@app.command()
def export(
    run: Annotated[Path, typer.Argument(help="A run folder.")],
    to: Annotated[Path, typer.Option("--to", help="The folder to write; must not exist or be empty.")],
    step: Annotated[int | None, typer.Option(help="A checkpoint other than the newest.")] = None,
    json_: Annotated[bool, typer.Option("--json", help="Print what was written as JSON.")] = False,
) -> None:
    """Write a checkpoint as a Hugging Face folder that transformers and vLLM load."""
    from harness.policies.export import checkpoint_dir, checkpoint_model
    from harness.results.record import model_hash

    folder = RunFolder.open(run)
    number, _ = checkpoint_dir(folder, step)
    if to.exists() and any(to.iterdir()):
        raise UserError(f"{to} exists and is not empty; choose another folder")
    merged = checkpoint_model(folder, step)
    shutil.copytree(merged, to, dirs_exist_ok=True)
    before, after = folder.read()["identity"]["model"], model_hash(str(to))
    if json_:
        emit_json({"run": folder.id, "step": number, "folder": str(to), "hash": after, "initial_hash": before})
    else:
        results().print(f"step {number} of {folder.id} -> {to} (hash {after}, before training {before})")

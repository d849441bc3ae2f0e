"""`harness data tau2`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from harness.cli.common import emit_json, say


def tau2(
    wheel: Annotated[
        Path | None, typer.Argument(help="The wheel of inspect_evals, where it is here; by default it is downloaded.")
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", help="Folder; default harness/tau2 in the cache folder.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Fetch tau2-bench's retail and airline (the wheel of inspect_evals, MIT), check them and replay all gold."""
    from harness_tau2.data import Manifest, default_folder, prepare

    folder = (out or default_folder()).expanduser()
    made = prepare(folder, wheel)
    manifest = Manifest.read(folder)
    rows = {}
    for name, one in made.items():
        judged = [task for task in one.tasks if "left_out" not in task]
        rows[name] = {
            "tasks": len(judged),
            "left_out": {task["id"]: task["left_out"] for task in one.tasks if "left_out" in task},
            "tools": len(one.tools),
            "nothing_changes": sum(not task["changes"] for task in judged),
            "nothing_changes_nor_said": sum(not task["changes"] and not task["said"] for task in judged),
            "with_assertions": sum(task["assertions"] > 0 for task in judged),
        }
    if as_json:
        emit_json({"folder": str(folder), "source": manifest.source, "licence": manifest.licence, "domains": rows})
        return
    say(f"{folder}: {manifest.source}, {manifest.licence}, {len(manifest.files)} files")
    for name, row in rows.items():
        say(
            f"  {name}: {row['tasks']} tasks, {row['tools']} tools; gold changes nothing in {row['nothing_changes']}, "
            f"and asks for no words either in {row['nothing_changes_nor_said']}"
        )
        for task, why in row["left_out"].items():
            say(f"  left out: {name}/{task}: {why}")

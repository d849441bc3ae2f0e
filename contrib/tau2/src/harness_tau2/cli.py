"""`harness data tau2`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from harness.cli.common import emit_json, say

if TYPE_CHECKING:
    from harness_tau2.data import Prepared


def tau2(
    wheel: Annotated[
        Path | None,
        typer.Argument(help="A local wheel of inspect_evals; by default it is downloaded."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", help="Folder; by default harness/tau2 in the cache folder."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Fetch tau2-bench's retail and airline (inspect_evals, MIT), check them and replay all gold."""
    from harness_tau2.data import Manifest, default_folder, prepare

    folder = (out or default_folder()).expanduser()
    domains = prepare(folder, wheel)
    manifest = Manifest.read(folder)
    rows = {name: _counted(domain) for name, domain in domains.items()}
    if as_json:
        emit_json(
            {
                "folder": str(folder),
                "source": manifest.source,
                "licence": manifest.licence,
                "domains": rows,
            }
        )
        return
    say(f"{folder}: {manifest.source}, {manifest.licence}, {len(manifest.files)} files")
    for line in lines(domains):
        say(line)


def lines(domains: Mapping[str, Prepared]) -> Iterator[str]:
    """Yield a line for each domain, and one for each excluded task."""
    for name, domain in domains.items():
        row = _counted(domain)
        yield (
            f"  {name}: {row['tasks']} tasks, {row['tools']} tools; "
            f"gold changes nothing in {row['nothing_changes']}, "
            f"and requires no text either in {row['nothing_changes_nor_said']}"
        )
        for task in domain.tasks:
            if "left_out" in task:
                yield f"  left out: {name}/{task['id']}: {task['left_out']}"


def _counted(domain: Prepared) -> dict[str, int]:
    judged = [task for task in domain.tasks if "left_out" not in task]
    unchanged = [task for task in judged if not task["changes"]]
    return {
        "tasks": len(judged),
        "left_out": len(domain.tasks) - len(judged),
        "tools": len(domain.tools),
        "nothing_changes": len(unchanged),
        "nothing_changes_nor_said": sum(not task["said"] for task in unchanged),
        "with_refused_actions": sum(task["refused"] > 0 for task in judged),
        "with_assertions": sum(task["assertions"] > 0 for task in judged),
    }

"""`harness runner`."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from harness.cli import complete
from harness.cli.common import progress_console

app = typer.Typer(add_completion=False)


@app.command()
def runner(
    join: Annotated[Path, typer.Option(help="The run's folder, or its join.json.", autocompletion=complete.runs)],
    runners: Annotated[int, typer.Option(min=1, help="Runner processes.")] = 1,
    logs: Annotated[Path | None, typer.Option(help="Where their logs go; by default beside the join file.")] = None,
) -> None:
    """Run agents for a run that goes on elsewhere, until it ends."""
    from harness.rollout.joining import Invitation, join_run

    invitation = Invitation.read(join)
    say = progress_console().print
    say(f"{invitation.agent} x {runners} for {invitation.run}, until it ends")
    beside = join if join.is_dir() else join.parent
    asyncio.run(join_run(invitation, runners, logs or beside / "logs"))
    say(f"{invitation.run} has ended")

"""`harness runner`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from harness.cli import complete
from harness.cli.common import interruptible, progress_console
from harness.errors import EnvironmentProblem, UserError
from harness.util.formatting import members

if TYPE_CHECKING:
    from harness.rollout.remote_runners import Invitation

app = typer.Typer(add_completion=False)


@app.command()
def runner(
    join: Annotated[
        Path | None,
        typer.Option(help="The run's folder, or its join.json.", autocompletion=complete.runs),
    ] = None,
    store: complete.Store = None,
    run: Annotated[
        str | None,
        typer.Option(help="With --store: work only for the run with this folder name."),
    ] = None,
    wait: Annotated[
        float, typer.Option(min=0, help="With --store: seconds to wait for a run.")
    ] = 600.0,
    runners: Annotated[int, typer.Option(min=1, help="Runner processes.")] = 1,
    logs: Annotated[
        Path | None,
        typer.Option(
            help="Folder of the logs of runner processes; by default the join file's folder, or runner-logs."
        ),
    ] = None,
) -> None:
    """Run agents for a run on another machine or in another process, until it ends.

    With --store, it works for one run after another.

    Ctrl-C and SIGTERM end it; other runners get its unfinished rollouts.
    """
    from harness.rollout.remote_runners import Invitation

    say = progress_console().print
    interruptible()
    if (join is None) == (store is None) or (run is not None and store is None):
        raise UserError("give --join RUN, or --store URL and optionally --run NAME")
    if join is not None:
        work(
            Invitation.read(join),
            runners,
            logs or (join if join.is_dir() else join.parent) / "logs",
            say,
        )
        return
    assert store is not None
    store, worked = store.rstrip("/"), False
    while (invitation := awaited(store, run, wait, say, say_so=not worked)) is not None:
        worked = True
        work(invitation, runners, logs or Path("runner-logs"), say)
    if not worked:
        raise EnvironmentProblem(
            f"no run{f' {run}' if run else ''} at {store} within {wait:g} s: "
            f"start one with --store {store}"
        )
    say(f"no further run at {store} within {wait:g} s")


def work(invitation: Invitation, runners: int, logs: Path, say: Callable[[str], None]) -> None:
    """Work for one run until it ends."""
    from harness_distributed.joining import join_run

    runners = max(runners, len(members(invitation.agent)))  # one for each agent at least
    say(f"{invitation.agent} x {runners} for {invitation.run}, until it ends")
    until_stopped(join_run(invitation, runners, logs))
    say(f"{invitation.run} has ended")


def until_stopped(work: Coroutine[object, object, None]) -> None:
    """Run a coroutine to its end; Ctrl-C, SIGTERM and SIGHUP cancel it, and it may clean up.

    Raises:
        KeyboardInterrupt: A signal ended it.
    """

    async def serve() -> None:
        from harness.runs.folder import endings

        task = asyncio.create_task(work)
        for number in endings():
            asyncio.get_running_loop().add_signal_handler(number, task.cancel)
        await task

    try:
        asyncio.run(serve())
    except asyncio.CancelledError:
        raise KeyboardInterrupt("unfinished rollouts are handed on") from None
    finally:
        interruptible()  # the loop removed its handlers at its end


def awaited(
    store: str, run: str | None, wait_s: float, say: Callable[[str], None], *, say_so: bool
) -> Invitation | None:
    """Return the active run with the fewest runners, or None if none starts in time.

    Raises:
        ConfigError: It is no store of harness, has another key, or its run has another version of
            harness.
        EnvironmentProblem: The store does not answer in time.
    """
    from harness.rollout.remote_runners import Invitation
    from harness_distributed.joining import answers
    from harness_distributed.remote_queue import ASK_S, runs_at, store_key

    ends = time.monotonic() + wait_s
    while True:
        for found in runs_at(store, say, max(0.0, ends - time.monotonic())):
            place = str(found.pop("place"))
            invitation = Invitation.of(
                {**found, "store_url": f"{store}/runs/{place}", "store_key": store_key()}, store
            )
            if run in (None, invitation.run) and asyncio.run(answers(invitation.gateway_url)):
                return invitation
        if time.monotonic() > ends:
            return None
        if say_so:
            say(f"waits for a run at {store}, for {wait_s:g} s at most")
        say_so = False
        time.sleep(ASK_S)

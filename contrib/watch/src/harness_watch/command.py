"""`harness watch`."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from harness.cli import complete
from harness.cli.common import one_thread, results
from harness.errors import UserError

app = typer.Typer(add_completion=False)

NICE = 5
"""Increment of this process's niceness, so that the watched training has priority."""
AWAIT_S = 1.0
"""Interval of polling for a first run."""


@app.command()
def watch(
    target: Annotated[
        Path | None,
        typer.Argument(
            help="A run, a study (file or folder), or a folder of runs; "
            "by default the newest run, once there is one.",
            autocompletion=complete.runs,
        ),
    ] = None,
    text: Annotated[
        bool,
        typer.Option(
            "--text", help="Print plain lines instead of serving a page, until the run ends."
        ),
    ] = False,
    port: Annotated[
        int,
        typer.Option(min=0, max=65535, help="Port on the loopback interface; 0 takes a free one."),
    ] = 0,
    open_: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
    runs_dir: Annotated[Path, typer.Option(help="Folder of the runs.")] = Path("runs"),
) -> None:
    """Show a run, a study or a folder of runs as a live report, also after its end.

    It only reads the folder, and serves the page on this machine until Ctrl-C.
    """
    from harness_watch.view import View

    one_thread()
    if target is None and not _came(runs_dir):
        return
    root, start = _place(target, runs_dir)
    with suppress(OSError):
        os.nice(NICE)
    view = View(root)
    view.look(start)  # reports what cannot be read
    if text:
        from harness_watch.text import show

        show(view, start, results())
        return
    from harness_watch.server import serve

    def opened(address: str) -> None:
        results().print(
            f"{root if start == '.' else root / start}: {address} until Ctrl-C", soft_wrap=True
        )
        if open_:
            import webbrowser

            webbrowser.open(address)

    with suppress(KeyboardInterrupt):
        serve(view, start, port, opened)


def _place(target: Path | None, runs_dir: Path) -> tuple[Path, str]:
    """Return a folder and the place in it to show first.

    Raises:
        UserError: There is nothing to show.
    """
    from harness.compare.selection import located

    if target is not None:
        folder = located(target, runs_dir)
        if not _holds_runs(folder):
            raise UserError(
                f"{target} holds no run and no study. `harness runs list` shows existing runs"
            )
        return folder, "."
    newest = max(_begun(runs_dir), key=lambda file: file.parent.name).parent
    return runs_dir.absolute(), newest.relative_to(runs_dir).as_posix()


def _holds_runs(folder: Path) -> bool:
    patterns = ("run.json", "study.json", "*/run.json", "*/study.json")
    return any(next(folder.glob(pattern), None) for pattern in patterns)


def _begun(runs_dir: Path) -> list[Path]:
    return [*runs_dir.glob("*/run.json"), *runs_dir.glob("*/*/run.json")]


def _came(runs_dir: Path) -> bool:
    """Wait for a run to appear. Return False on Ctrl-C."""
    if not _begun(runs_dir):
        results().print(
            f"waiting for the first run below {runs_dir}: harness train starts one", soft_wrap=True
        )
    try:
        while not _begun(runs_dir):
            time.sleep(AWAIT_S)
    except KeyboardInterrupt:
        return False
    return True

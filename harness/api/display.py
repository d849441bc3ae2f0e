"""The live display of a training: a panel on a terminal, otherwise one line per step."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Self

from harness.util.formatting import duration, mean, percent, printable, rate

if TYPE_CHECKING:
    from rich.console import Console

    from harness.runs.progress import Progress


EVERY_S = 15.0
"""Seconds between progress lines without a terminal."""


class TrainingDisplay:
    """Show `Progress`; a context manager around the training.

    Args:
        last_start: Text about the last start's duration, after `starting`.
        advice: Further advice for a training that learns nothing.
        panel: Whether to draw a panel on a terminal.
    """

    def __init__(
        self,
        console: Console,
        title: str,
        last_start: str = "",
        advice: str = "",
        *,
        panel: bool = True,
    ) -> None:
        from rich.live import Live

        self._console = console
        self._title = title
        self._began = time.monotonic()
        live = panel and console.is_terminal
        self._live = Live(console=console, refresh_per_second=4, transient=True) if live else None
        self._last: tuple[int, int] = (-1, 0)
        self._phase = "starting"
        self._said = self._began
        self._last_start = last_start
        self._advice = advice
        self._remark = self._warning = ""
        self.start_s: float | None = None
        """Seconds until the first rollout; None before it."""

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def show(self, progress: Progress) -> None:
        """Update the display."""
        if self.start_s is None and progress.phase != "starting":
            self.start_s = time.monotonic() - self._began
        if progress.warning != self._warning:
            self._warning = progress.warning
            self._console.print(progress.warning, markup=False, soft_wrap=True)
        if progress.remark != self._remark:
            self._remark = progress.remark
            if progress.remark:
                self._console.print(
                    f"{progress.remark}{self._advice}.", markup=False, soft_wrap=True
                )
        if self._live is not None:
            from rich.panel import Panel
            from rich.text import Text

            title = Text(printable(self._title))
            self._live.update(Panel(self._body(progress), title=title, title_align="left"))
            return
        waits = progress.phase == "starting" or (
            progress.phase.startswith("validating") and progress.done < progress.expected
        )
        if waits and (progress.phase != self._phase or time.monotonic() - self._said >= EVERY_S):
            self._said = time.monotonic()
            self._console.print(
                f"{self._doing(progress)}  {duration(time.monotonic() - self._began)}"
            )
        self._phase = progress.phase
        # Without a terminal, print a line per step and validation, because logs cannot show a
        # panel.
        seen = (progress.step, len(progress.val_curve))
        if seen != self._last and (progress.step or progress.val_curve):
            self._last = seen
            self._console.print(self._line(progress))

    def _line(self, progress: Progress) -> str:
        reward = "-" if progress.reward is None else f"{progress.reward:.3f}"
        last = max(progress.val_curve, default=None)
        val = ""
        if last is not None:
            val = f"  val({last}) {mean(progress.val_curve[last], progress.graded)}"
        mixed = "" if progress.mixed is None else f"  mixed groups {percent(progress.mixed)}"
        return (
            f"step {progress.step}/{progress.total_steps}  reward {reward}{mixed}{val}  "
            f"{duration(progress.step_s)}/step  {rate(progress.rollouts_per_s)} rollouts/s  "
            f"left {duration(progress.remaining_s)}{self._failures(progress)}"
        )

    def _body(self, progress: Progress) -> str:
        curve = []
        for step, value in sorted(progress.val_curve.items()):
            curve.append(f"{step}: {mean(value, progress.graded)}")
        elapsed = duration(time.monotonic() - self._began)
        return "\n".join(
            (
                f"{self._doing(progress)}   elapsed {elapsed}",
                self._line(progress),
                f"validation  {'  '.join(curve) or 'not yet'}",
            )
        )

    def _doing(self, progress: Progress) -> str:
        if progress.phase == "starting":
            return f"{progress.phase}{self._last_start}"
        # A step of supervised training has no rollouts to count.
        if not progress.expected:
            return progress.phase
        return f"{progress.phase}: {progress.done} of {progress.expected} rollouts"

    @staticmethod
    def _failures(progress: Progress) -> str:
        if not progress.failures:
            return ""
        failures = [f"{name} {count}" for name, count in sorted(progress.failures.items())]
        return f"  failed: {', '.join(failures)}"


@contextmanager
def counted(console: Console, what: str) -> Iterator[Callable[[int, int], None]]:
    """Show a bar on a terminal or occasional lines elsewhere.

    Yield the callback for `done` and `total`.
    """
    if not console.is_terminal:
        began = reported = time.monotonic()

        def line(done: int, total: int) -> None:
            nonlocal reported
            now = time.monotonic()
            if done == total or now - reported >= EVERY_S:
                reported = now
                left = duration((now - began) / done * (total - done) if done else None)
                text = f"{what}: {done} of {total}  {duration(now - began)}  left {left}"
                console.print(text, markup=False, soft_wrap=True)

        yield line
        return
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )
    from rich.progress import Progress as Bars

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Bars(*columns, TimeRemainingColumn(), console=console) as bars:
        bar = bars.add_task(what, total=None)
        yield lambda done, total: bars.update(bar, completed=done, total=total)

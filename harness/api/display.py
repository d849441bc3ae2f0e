"""The live display of a training: a panel on a terminal, otherwise one line per step."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Self

from harness.util.formatting import duration, mean, measured, percent, printable, rate

if TYPE_CHECKING:
    from rich.console import Console

    from harness.runs.progress import Progress


STARTING = "starting"
"""Phase of a training before its first rollout."""
EVERY_S = 15.0
"""Seconds between progress lines without a terminal."""


class TrainingDisplay:
    """Show `Progress`; a context manager around the training.

    Args:
        last_start: Text about the duration of the last start, which follows `starting`.
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
        self._phase = STARTING
        self._printed = self._began
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
        if self.start_s is None and progress.phase != STARTING:
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
        waits = progress.phase == STARTING or (
            progress.phase.startswith("validating") and progress.done < progress.expected
        )
        if waits and (progress.phase != self._phase or time.monotonic() - self._printed >= EVERY_S):
            self._printed = time.monotonic()
            self._console.print(self._doing(progress))
        self._phase = progress.phase
        # Without a terminal, print a line per step and validation, because logs cannot show a
        # panel.
        seen = (progress.step, len(progress.val_curve))
        if seen != self._last and (progress.step or progress.val_curve):
            self._last = seen
            self._console.print(self._line(progress))

    def _line(self, progress: Progress, *, validated: bool = True) -> str:
        """Return what is finished: steps, the last reward, speed and the time left.

        Args:
            validated: Whether to add the last validation.
        """
        parts = []
        if progress.reward is not None:
            parts.append(f"reward {progress.reward:.3f}")
        if progress.mixed is not None:
            parts.append(f"groups with different rewards {percent(progress.mixed)}")
        last = max(progress.val_curve, default=None)
        if validated and last is not None:
            value = mean(progress.val_curve[last], progress.graded)
            parts.append(f"{measured(progress.graded)} {value} after step {last}")
        if progress.step_s is not None:
            parts.append(f"{duration(progress.step_s)} per step")
        if progress.rollouts_per_s:
            parts.append(f"{rate(progress.rollouts_per_s)} rollouts per s")
        if progress.remaining_s is not None:
            parts.append(f"{duration(progress.remaining_s)} left")
        if progress.failures:
            failures = [f"{name} {count}" for name, count in sorted(progress.failures.items())]
            parts.append(f"failed rollouts: {', '.join(failures)}")
        steps = f"{progress.step} of {progress.total_steps} steps done"
        return f"{steps}: {', '.join(parts)}" if parts else steps

    def _body(self, progress: Progress) -> str:
        curve = []
        for step, value in sorted(progress.val_curve.items()):
            curve.append(f"{mean(value, progress.graded)} (step {step})")
        # The last line has all validations.
        return "\n".join(
            (
                self._doing(progress),
                self._line(progress, validated=False),
                f"{measured(progress.graded)}: {', '.join(curve) or 'no validation yet'}",
            )
        )

    def _doing(self, progress: Progress) -> str:
        """Return what is being done now, and for how long the training has run."""
        doing = progress.phase
        if progress.phase == STARTING:
            doing += self._last_start
        # A step of supervised training has no rollouts to count.
        elif progress.expected:
            doing += f": {progress.done} of {progress.expected} rollouts"
        return f"{doing}; running for {duration(time.monotonic() - self._began)}"


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
                text = f"{what}: {done} of {total}; running for {duration(now - began)}"
                if done:
                    text += f", {duration((now - began) / done * (total - done))} left"
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

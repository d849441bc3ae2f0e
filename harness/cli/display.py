"""The live display of a training: one panel on a terminal, a line a step elsewhere."""

from __future__ import annotations

import time
from types import TracebackType
from typing import TYPE_CHECKING, Self

from harness.wording import duration, percent

if TYPE_CHECKING:
    from rich.console import Console

    from harness.trainers import Progress


class TrainingDisplay:
    """Shows `Progress`; a context manager around the training."""

    def __init__(self, console: Console, title: str) -> None:
        from rich.live import Live

        self._console = console
        self._title = title
        self._began = time.monotonic()
        self._live = Live(console=console, refresh_per_second=4, transient=True) if console.is_terminal else None
        self._last: tuple[int, int] = (-1, 0)
        self._phase = "starting"

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def show(self, progress: Progress) -> None:
        """Bring the display up to date."""
        if self._live is not None:
            from rich.panel import Panel

            self._live.update(Panel(self._body(progress), title=self._title, title_align="left"))
            return
        if progress.phase != self._phase and not progress.step and not progress.val_curve:
            self._phase = progress.phase
            self._console.print(f"{progress.phase}  {duration(time.monotonic() - self._began)}")
        seen = (progress.step, len(progress.val_curve))
        if seen != self._last and (progress.step or progress.val_curve):
            self._last = seen
            self._console.print(self._line(progress))

    def _line(self, progress: Progress) -> str:
        reward = "-" if progress.reward is None else f"{progress.reward:.3f}"
        last = max(progress.val_curve, default=None)
        val = "" if last is None else f"  val({last}) {percent(progress.val_curve[last])}"
        return (
            f"step {progress.step}/{progress.total_steps}  reward {reward}{val}  "
            f"{duration(progress.step_s)}/step  {progress.rollouts_per_s:.1f} rollouts/s  "
            f"left {duration(progress.remaining_s)}{self._failures(progress)}"
        )

    def _body(self, progress: Progress) -> str:
        curve = "  ".join(f"{step}: {percent(value)}" for step, value in sorted(progress.val_curve.items()))
        elapsed = duration(time.monotonic() - self._began)
        return "\n".join(
            (
                f"{progress.phase}   elapsed {elapsed}",
                self._line(progress),
                f"validation  {curve or 'not yet'}",
            )
        )

    @staticmethod
    def _failures(progress: Progress) -> str:
        if not progress.failures:
            return ""
        return "  failed: " + ", ".join(f"{name} {count}" for name, count in sorted(progress.failures.items()))

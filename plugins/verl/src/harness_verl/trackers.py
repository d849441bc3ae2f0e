"""verl's trackers next to its own files: a failing one is dropped with one line in the log.

Importing this changes verl's `Tracking`, which would end a training where a server is wrong or goes
away (Weights & Biases), or delay every step of it (MLflow). The run's folder keeps what a tracker
missed, and `harness runs export` sends it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Protocol

from verl.utils.tracking import Tracking

from harness_trackers.reach import be_quick, left_off, one_line
from harness_verl.names import WARNS

OURS = ("console", "file", "tensorboard")
"""Trackers that write on this machine, where a failure is one of the run."""
_init = Tracking.__init__


class Tracker(Protocol):
    """One of verl's trackers."""

    def log(self, *, data: Mapping[str, float], step: int) -> object:
        """Log a step."""

    def finish(self, **options: int) -> object:
        """Send what is left."""


class Careful:
    """One of verl's trackers, until it fails."""

    def __init__(self, name: str, tracker: Tracker) -> None:
        self._name = name
        self._tracker: Tracker | None = tracker

    def log(self, data: Mapping[str, float], step: int) -> None:
        """Log a step, unless an earlier one failed."""
        self._try(lambda tracker: logged(self._name, tracker, data, step))

    def finish(self, **options: int) -> None:
        """Send what is left."""
        self._try(lambda tracker: tracker.finish(**options))

    def _try(self, act: Callable[[Tracker], object]) -> None:
        if self._tracker is None:
            return
        try:
            act(self._tracker)
        except Exception as error:  # of any library
            self._tracker = None
            warn(self._name, one_line(error))


def logged(name: str, tracker: Tracker, data: Mapping[str, float], step: int) -> None:
    """Log a step, for MLflow without verl's adapter, which retries three times and hides errors."""
    if name != "mlflow":
        tracker.log(data=data, step=step)
        return
    import mlflow

    clean = tracker._sanitize_key  # type: ignore[attr-defined]
    mlflow.log_metrics({clean(key): value for key, value in data.items()}, step=step)


def init(
    self: Tracking,
    project_name: str,
    experiment_name: str,
    default_backend: str | list[str] = "console",
    config: object = None,
) -> None:
    """Run verl's own constructor for each tracker by itself."""
    names = [default_backend] if isinstance(default_backend, str) else list(default_backend)
    _init(self, project_name, experiment_name, [name for name in names if name in OURS], config)
    be_quick()
    for name in names:
        if name not in OURS:
            try:
                self.logger[name] = Careful(
                    name, begun(name, project_name, experiment_name, config)
                )
            except Exception as error:  # of any library
                warn(name, one_line(error))


def begun(name: str, project_name: str, experiment_name: str, config: object) -> Tracker:
    """Return verl's tracker of this name.

    Raises:
        RuntimeError: verl dropped it.
    """
    alone = object.__new__(Tracking)
    try:
        _init(alone, project_name, experiment_name, [name], config)
    finally:
        alone._finished = (
            True  # end it here: otherwise it ends its trackers when it is garbage-collected
        )
    if name not in alone.logger:
        raise RuntimeError("its server refused the run, or did not answer")
    tracker: Tracker = alone.logger[name]
    return tracker


def warn(name: str, fault: str) -> None:
    """Write a log line that is shown to the user."""
    sys.stderr.write(f"{WARNS}{left_off(name, fault)}\n")
    sys.stderr.flush()


Tracking.__init__ = init

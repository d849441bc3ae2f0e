"""verl's trackers beside its own files: one that fails is left off, in a line, and the training goes on.

Loading this changes verl's `Tracking`, which would end a training where a server is wrong or goes away (Weights &
Biases), or hold up every step of it (MLflow). What a tracker missed is in the run's folder, and `harness runs export`
sends it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from verl.utils.tracking import Tracking

from harness_trackers.reach import be_quick, left_off, one_line
from harness_verl.names import WARNS

OURS = ("console", "file", "tensorboard")
"""Written on this machine, where a failure is the run's own."""
_init = Tracking.__init__


class Careful:
    """One of verl's trackers, for as long as it takes what it is given."""

    def __init__(self, name: str, tracker: Any) -> None:
        self._name = name
        self._tracker = tracker

    def log(self, data: dict[str, Any], step: int) -> None:
        """Log a step, unless an earlier one failed."""
        self._try(lambda: logged(self._name, self._tracker, data, step))

    def finish(self, **options: Any) -> None:
        """Send what is left."""
        self._try(lambda: self._tracker.finish(**options))

    def _try(self, act: Callable[[], Any]) -> None:
        if self._tracker is None:
            return
        try:
            act()
        except Exception as error:  # of any library
            self._tracker = None
            warn(self._name, one_line(error))


def logged(name: str, tracker: Any, data: dict[str, Any], step: int) -> None:
    """Log a step; of MLflow without verl's adapter, which tries three times and says nothing."""
    if name != "mlflow":
        tracker.log(data=data, step=step)
        return
    import mlflow

    mlflow.log_metrics({tracker._sanitize_key(key): value for key, value in data.items()}, step=step)


def init(
    self: Tracking, project_name: str, experiment_name: str, default_backend: Any = "console", config: Any = None
) -> None:
    """verl's own, for each tracker by itself."""
    names = [default_backend] if isinstance(default_backend, str) else list(default_backend)
    _init(self, project_name, experiment_name, [name for name in names if name in OURS], config)
    be_quick()
    for name in names:
        if name not in OURS:
            try:
                self.logger[name] = Careful(name, begun(name, project_name, experiment_name, config))
            except Exception as error:  # of any library
                warn(name, one_line(error))


def begun(name: str, project_name: str, experiment_name: str, config: Any) -> Any:
    """verl's tracker of this name.

    Raises:
        RuntimeError: verl gave it up.
    """
    alone = object.__new__(Tracking)
    alone._finished = True  # it is ours to end
    _init(alone, project_name, experiment_name, [name], config)
    if name not in alone.logger:
        raise RuntimeError("its server refused the run, or did not answer")
    return alone.logger[name]


def warn(name: str, fault: str) -> None:
    """A line of the log that whoever started the run is shown."""
    sys.stderr.write(f"{WARNS}{left_off(name, fault)}\n")
    sys.stderr.flush()


Tracking.__init__ = init

"""Shorten the start of a training, and estimate how long it takes."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from harness.config import Config, cache_dir, resolve_device
from harness.runs.folder import replace_text


@contextmanager
def preloaded_modules(config: Config) -> Iterator[Mapping[str, str]]:
    """Let the trainer preload modules for this training, and yield the variables that name them.

    Nothing is loaded if the environment names modules, as for most trainings of a study.
    """
    from harness.plugins import make_trainer

    standby = make_trainer(config).standby(config, os.environ)
    if standby is None:
        yield {}
        return
    try:
        yield standby.variables
    finally:
        standby.close()


def _starts() -> tuple[Path, dict[str, float]]:
    """Return this machine's measured start times in seconds, and the file that holds them."""
    file = cache_dir() / "starts.json"
    times = {}
    # Estimates alone: a damaged file must not keep a training from starting.
    try:
        for key, value in json.loads(file.read_text(encoding="utf-8")).items():
            times[str(key)] = float(value)
    except (OSError, ValueError, TypeError, AttributeError):
        return file, {}
    return file, times


def _started(config: Config) -> str:
    slow = " deterministic" if config.deterministic else ""
    slow += " cluster" if config.ray_address else ""
    return f"{config.train.trainer} {resolve_device(config.device)} {config.policy.path}{slow}"


def measured_start_s(config: Config) -> float | None:
    """Return the seconds that the last start of such a training took; None if none is known."""
    return _starts()[1].get(_started(config))


def keep_start_s(config: Config, seconds: float) -> None:
    """Record the seconds until a training's first rollout, for the next start's estimate."""
    file, known = _starts()
    with suppress(OSError):  # only a hint for the next start, no part of the run
        file.parent.mkdir(parents=True, exist_ok=True)
        replace_text(file, json.dumps(known | {_started(config): round(seconds, 1)}, indent=2))

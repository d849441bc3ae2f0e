"""Rollouts that wait to be checked against the reference agent: one file each, in the run's folder.

The process that runs rollouts writes the files; `harness.parity.shadow_check` reads and removes them in
a process of its own.
"""

from __future__ import annotations

import itertools
import logging
import os
import random
from dataclasses import asdict
from pathlib import Path
from typing import Any

import orjson

from harness.records import Attempt
from harness.rollout.request import RolloutRequest

logger = logging.getLogger(__name__)

MOST_WAITING = 4096
"""Most waiting files. Further rollouts count as not checked, so that a dead check fills no disk."""
FILE_BYTES = 64 * 2**20
"""A larger rollout is counted as not checked."""
LEFT_OUT = frozenset({"runner_lost", "environment_error"})
"""Outcomes with incomplete records, which show nothing about the agent."""
DROPPED = ".dropped"
WAITING = ".json"
_TOKENS = ("prompt_ids", "response_ids", "logprobs")


def chosen(seed: int, share: float, phase: str, step: int, who: str) -> bool:
    """Return whether a rollout is checked: every validation, and a seeded random share of training.

    Args:
        share: Of the training rollouts, from 0 to 1.
        who: Task and session.
    """
    if phase != "train":
        return True
    return random.Random(f"{seed}/shadow/{step}/{who}").random() < share


class ShadowQueue:
    """Writes rollouts for the check. It never raises, and never waits for the check.

    Args:
        folder: The run's shadow queue; nothing is written where it does not exist.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._numbers = itertools.count()
        self._waiting = 0

    def add(
        self, request: RolloutRequest, attempt: Attempt, model: str, phase: str, step: int
    ) -> None:
        """Write one rollout, or a mark that it was dropped."""
        if attempt.outcome in LEFT_OUT or not self._folder.is_dir():
            return
        number = next(self._numbers)
        name = f"{number:09d}-{os.getpid()}"
        try:
            # Counting files takes longer than writing one, so count only now and then.
            if number % 64 == 0:
                self._waiting = len(os.listdir(self._folder))
            data = self._data(request, attempt, model, phase, step)
            if self._waiting > MOST_WAITING or len(data) > FILE_BYTES:
                (self._folder / f"{name}{DROPPED}").touch()
                return
            unfinished = self._folder / f"{name}.part"
            unfinished.write_bytes(data)
            unfinished.rename(self._folder / f"{name}{WAITING}")
        except Exception as error:  # a failed check must not end the run
            logger.warning("rollout %s is not checked: %s", attempt.rollout_id, error)

    @staticmethod
    def _data(
        request: RolloutRequest, attempt: Attempt, model: str, phase: str, step: int
    ) -> bytes:
        record: dict[str, Any] = asdict(attempt)
        for call in record["transitions"]:
            for name in _TOKENS:
                call[name] = None
        row = {"request": request.dump(), "attempt": record, "model": model}
        return orjson.dumps({**row, "phase": phase, "step": step}, default=str)

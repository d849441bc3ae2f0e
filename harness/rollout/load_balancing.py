"""Share waiting rollouts among runners, so that none works alone while others idle."""

from __future__ import annotations

import threading
import time
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass

LATELY_S = 2.0
"""Seconds after its last request for which a runner takes part. Full, blocked and dead runners
send no requests.
"""
START_S = 60.0
"""Seconds for which rollouts are reserved for a runner that is still importing its agent."""


@dataclass(frozen=True, slots=True)
class _Runner:
    running: int
    free: int
    until: float
    """The time until which it takes part, by the monotonic clock."""

    def lacks(self, level: int) -> int:
        """Return how many rollouts it can take until `level` are in progress."""
        return max(0, min(level, self.running + self.free) - self.running)


class LoadBalancer:
    """Distribution of rollouts among runners; safe to use from several threads.

    Waiting rollouts are assigned one by one, each to the runner with the fewest in progress and
    room for one more. A request returns the runner's own assignments; those of other runners wait
    for them as long as they take part.
    """

    def __init__(self) -> None:
        self._runners: dict[str, _Runner] = {}
        self._lock = threading.Lock()

    def expect(self, runners: Iterable[str], free: int) -> None:
        """Register runners that start, with room for `free` rollouts each."""
        with self._lock:
            self._runners |= dict.fromkeys(runners, _Runner(0, free, time.monotonic() + START_S))

    def taking_part(self) -> int:
        """Return how many runners take part."""
        now = time.monotonic()
        with self._lock:
            return len([runner for runner in self._runners.values() if runner.until > now])

    def share(self, runner: str, running: int, free: int, waiting: int) -> int:
        """Return how many of `waiting` rollouts the requesting runner takes.

        Args:
            running: Rollouts that it has in progress.
            free: Further rollouts that it has room for.
        """
        now = time.monotonic()
        with self._lock:
            # A runner without a recent request may be dead; rollouts must not wait for it.
            for name, other in list(self._runners.items()):
                if other.until <= now:
                    del self._runners[name]
            requester = _Runner(running, free, now + LATELY_S)
            everyone = [requester]
            for name, other in self._runners.items():
                if name != runner:
                    everyone.append(other)

            def needed(level: int) -> int:
                """Return how many rollouts fill everyone up to a level."""
                return sum(member.lacks(level) for member in everyone)

            # The number grows with the level, so bisection finds the highest level that the
            # waiting rollouts can fill.
            levels = range(running, running + free + 1)
            level = running + bisect_right(levels, waiting, key=needed) - 1
            if running <= level < running + free and needed(level) < waiting:
                level += 1  # at equal levels, the requesting runner comes first
            taken = max(0, level - running)
            self._runners[runner] = _Runner(running + taken, free - taken, requester.until)
        return taken

"""Share waiting rollouts among runners, so that none works alone while others idle."""

from __future__ import annotations

import threading
import time
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass

LATELY_S = 2.0
"""A runner that asked within this time takes part in sharing. One that is full, blocked or gone
asks for nothing.
"""
START_S = 60.0
"""How long a share is kept for a runner that is still importing its agent."""


@dataclass(frozen=True, slots=True)
class _Runner:
    running: int
    free: int
    until: float
    """By the monotonic clock: when it no longer takes part."""

    def lacks(self, level: int) -> int:
        """How many rollouts it could take until it has `level` under way."""
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
        """Runners that start, with room for `free` rollouts each."""
        with self._lock:
            self._runners |= dict.fromkeys(runners, _Runner(0, free, time.monotonic() + START_S))

    def taking_part(self) -> int:
        """How many runners there are."""
        now = time.monotonic()
        with self._lock:
            return len([runner for runner in self._runners.values() if runner.until > now])

    def share(self, runner: str, running: int, free: int, waiting: int) -> int:
        """How many of `waiting` rollouts a runner takes that asks.

        Args:
            running: How many it has under way.
            free: How many more it has room for.
        """
        now = time.monotonic()
        with self._lock:
            # A runner that has not asked lately may be gone; rollouts must not wait for it.
            for name, other in list(self._runners.items()):
                if other.until <= now:
                    del self._runners[name]
            asks = _Runner(running, free, now + LATELY_S)
            everyone = [asks]
            for name, other in self._runners.items():
                if name != runner:
                    everyone.append(other)

            def dealt(level: int) -> int:
                """What brings everyone to a level."""
                return sum(member.lacks(level) for member in everyone)

            # More is dealt at a higher level, so the highest level that the waiting rollouts can
            # fill is found by halving.
            levels = range(running, running + free + 1)
            level = running + bisect_right(levels, waiting, key=dealt) - 1
            if running <= level < running + free and dealt(level) < waiting:
                level += 1  # of those at one level the one who asks is first
            taken = max(0, level - running)
            self._runners[runner] = _Runner(running + taken, free - taken, asks.until)
        return taken

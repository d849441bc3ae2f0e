"""Wall-clock time that is immune to clock changes, for times that are ordered or subtracted."""

from __future__ import annotations

import time

_BEGAN = time.time() - time.monotonic()


def now() -> float:
    """Return seconds since 1970: the clock at the start of this process plus the elapsed time."""
    return _BEGAN + time.monotonic()

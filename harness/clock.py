"""Unix time that nobody sets: for times that are put in order or taken from each other."""

from __future__ import annotations

import time

_BEGAN = time.time() - time.monotonic()


def now() -> float:
    """Seconds since 1970: what the machine's clock said when this process began, and what has passed since."""
    return _BEGAN + time.monotonic()

"""The number of threads of a process that computes with a policy."""

from __future__ import annotations

import os

from harness.errors import EnvironmentProblem

VARIABLE = "OMP_NUM_THREADS"
"""Environment variable with the number of threads, as OpenMP reads it."""


def computing_threads() -> int:
    """Return the number in `OMP_NUM_THREADS`, else the number of cores that this process may use.

    Of OpenMP's list of numbers, one for each level of nesting, the first counts.

    Raises:
        EnvironmentProblem: The variable holds no positive whole number.
    """
    stated = os.environ.get(VARIABLE, "").strip()
    if not stated:
        if hasattr(os, "sched_getaffinity"):
            return len(os.sched_getaffinity(0))
        return os.cpu_count() or 1
    first = stated.split(",")[0].strip()
    if not (first.isascii() and first.isdigit() and int(first) > 0):
        raise EnvironmentProblem(
            f"{VARIABLE} is {stated!r}, not a number of threads. "
            "Set it to a whole number above 0, or unset it"
        )
    return int(first)

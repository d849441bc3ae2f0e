"""Keeps trainings on one machine apart: their weights must not meet.

verl hands new weights to vLLM through a socket in /tmp that is named by Ray's job number, and each run has a Ray of its
own in which it is job 1. Two runs side by side would bind, and connect to, the same socket. Ray's hook for worker
processes calls `keep_apart`, which adds the run to the number.
"""

from __future__ import annotations

import hashlib
import os

from harness import timeline
from harness.rollout.processes import RUN_MARK

HOOK = f"{__name__}.keep_apart"


def keep_apart() -> None:
    """Make Ray's job id, as this process sees it, unique to the run; without a run's mark it stays."""
    mark = os.environ.get(RUN_MARK)
    if not mark:
        return
    timeline.born("Ray's worker")
    from ray.runtime_context import RuntimeContext

    original = RuntimeContext.get_job_id
    run = hashlib.sha256(mark.encode()).hexdigest()[:10]

    def get_job_id(self: RuntimeContext) -> str:
        return f"{original(self)}-{run}"

    RuntimeContext.get_job_id = get_job_id

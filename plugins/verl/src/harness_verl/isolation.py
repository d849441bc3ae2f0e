"""Isolate trainings on one machine from each other and from other users, as Ray's worker hook.

Ray's hook for worker processes calls `set_up_worker`:

- verl sends new weights to vLLM through a socket in /tmp that is named by Ray's job number, and
  each run has its own Ray, in which it is job 1. Two runs at the same time would bind, and connect
  to, the same socket. `keep_apart` adds the run to the number.
- TransferQueue and torch's key-value store listen without a key: see `patched.transfer_queue` and
  `harness_policy_server.loopback_store`.
"""

from __future__ import annotations

import hashlib
import os

from harness.rollout.processes import RUN_MARK
from harness.util import start_trace
from harness_policy_server import loopback_store
from harness_verl.patched import transfer_queue

HOOK = f"{__name__}.set_up_worker"


def set_up_worker() -> None:
    """Prepare a worker process of Ray before its first task.

    Raises:
        OSError: The run's key file cannot be read.
    """
    keep_apart()
    transfer_queue.require_key()
    loopback_store.listen_on_loopback()


def keep_apart() -> None:
    """Make Ray's job id unique to the run in this process, if the process has a run's mark."""
    mark = os.environ.get(RUN_MARK)
    if not mark:
        return
    start_trace.born("Ray's worker")
    from ray.runtime_context import RuntimeContext

    original = RuntimeContext.get_job_id
    run = hashlib.sha256(mark.encode()).hexdigest()[:10]

    def get_job_id(self: RuntimeContext) -> str:
        return f"{original(self)}-{run}"

    RuntimeContext.get_job_id = get_job_id

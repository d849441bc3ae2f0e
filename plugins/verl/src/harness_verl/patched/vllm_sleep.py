"""Let vLLM sleep on a GPU that other processes use.

The patch gives `vllm.v1.worker.worker_base.WorkerWrapperBase` of vLLM 0.24.0 a method `sleep`,
which calls the worker's own and accepts one of its failures: the assertion that the GPU has at
least as much free memory after sleeping as before.

The assertion compares the memory of the whole GPU. Where another training allocates memory in the
same moment, it fails although vLLM has released its own memory, and ends the training: of 17
trainings on two shared GPUs, one ended so. By then vLLM has released everything; only a log message
with the released amount follows.

vLLM loads the patch as a general plugin in the processes of its engine.
"""

from __future__ import annotations

import importlib
import logging
from typing import Any

MESSAGE = "Memory usage increased after sleeping"
"""The message of the assertion in `vllm.v1.worker.gpu_worker.Worker.sleep`."""

log = logging.getLogger(__name__)


def allow_other_processes() -> None:
    """Add `sleep` to the class through which vLLM's executors call a worker."""
    worker_base = importlib.import_module("vllm.v1.worker.worker_base")
    worker_base.WorkerWrapperBase.sleep = sleep


def sleep(wrapper: Any, level: int = 1) -> None:
    """Have a wrapper's worker release its memory, whatever other processes allocate meanwhile.

    Args:
        wrapper: vLLM's `WorkerWrapperBase`.
        level: vLLM's level: 1 keeps the weights in the host's memory, 2 discards them.

    Raises:
        AssertionError: Another assertion of the worker failed.
    """
    try:
        wrapper.worker.sleep(level)
    except AssertionError as error:
        if MESSAGE not in str(error):
            raise
        log.warning("other processes allocated memory of this GPU while vLLM released its own")

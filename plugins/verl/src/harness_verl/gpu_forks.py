"""Keep imports before a fork from starting CUDA, which works in one process alone."""

from __future__ import annotations

import contextlib
import importlib
import os
import signal
import sys
from collections.abc import Iterator

TRIAL_S = 60
"""Seconds in which CUDA must start."""


@contextlib.contextmanager
def untouched_gpu() -> Iterator[None]:
    """Let imports query the GPU through its driver's library (NVML), without starting CUDA.

    verl queries the capability, vLLM the name and Triton's view of it, others whether a GPU exists.
    """
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
    import torch

    nvml = importlib.import_module("pynvml")

    def capability(device: int = 0) -> tuple[int, int]:
        major, minor = nvml.nvmlDeviceGetCudaComputeCapability(
            torch.cuda._get_pynvml_handler(device)
        )
        return major, minor

    def name(device: int = 0) -> str:
        return str(nvml.nvmlDeviceGetName(torch.cuda._get_pynvml_handler(device)))

    answers = {
        "current_device": lambda: 0,
        "get_device_capability": capability,
        "get_device_name": name,
    }
    asked = {question: getattr(torch.cuda, question) for question in answers}
    vars(torch.cuda).update(answers)
    try:
        yield
    finally:
        vars(torch.cuda).update(asked)
        if triton := sys.modules.get("triton"):  # it caches the answers
            triton.runtime.driver._active = triton.runtime.driver._default = None


def cuda_starts_in_a_fork() -> bool:
    """Return whether CUDA starts: not once it was started here, and not without a GPU."""
    process = os.fork()
    if process:
        return os.waitpid(process, 0)[1] == 0
    signal.alarm(TRIAL_S)
    with contextlib.suppress(Exception):
        import torch

        torch.cuda.init()
        os._exit(0)
    os._exit(1)

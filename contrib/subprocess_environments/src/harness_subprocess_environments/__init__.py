"""Subprocesses, for code with an environment of its own or from untrusted sources."""

from harness_subprocess_environments.process import INHERITED, OURS, Pool, Subprocess
from harness_subprocess_environments.session import (
    Payload,
    SubprocessEnvironment,
    SubprocessSession,
)

__all__ = [
    "INHERITED",
    "OURS",
    "Payload",
    "Pool",
    "Subprocess",
    "SubprocessEnvironment",
    "SubprocessSession",
]

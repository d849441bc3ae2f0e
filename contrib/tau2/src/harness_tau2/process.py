"""The subprocess with a domain's tools."""

from __future__ import annotations

import sys
from pathlib import Path

from harness_subprocess_environments import INHERITED, OURS
from harness_subprocess_environments import Subprocess as AnySubprocess
from harness_tau2.worker.messages import Answer


class Subprocess(AnySubprocess[Answer]):
    """One process of `harness_tau2.worker`."""

    def __init__(self, folder: Path, domain: str) -> None:
        command = (sys.executable, "-B", "-m", "harness_tau2.worker", str(folder), domain)
        super().__init__(command, f"the subprocess of {domain!r}", (*INHERITED, *OURS))

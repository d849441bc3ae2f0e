"""Serve forks to the runs of a study: `python -m harness_verl.standby NAME STUDY_PID DEVICE`.

Each run's workers are forks of it, so that torch, transformers and verl are imported once a study.
It ends with the study; if the study was killed, it ends after the run that is still there.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Mapping

from harness.contracts.trainers import Standby
from harness.rollout.processes import RUN_MARK, mark_place, stop_process
from harness_verl import forks

ROOM = 255
"""Bytes for the mark of a run."""
ASK_S = 5.0
"""Seconds in which the server must report whether its imports are unchanged."""


class ForkServer(Standby):
    """A fork server for one slot of a study.

    Args:
        environment: A run's environment, without what differs between runs.
        kind: A hash of that environment; runs of another kind do not use it.
        device: The device of those runs.
    """

    def __init__(self, environment: Mapping[str, str], kind: str, device: str) -> None:
        self._name = forks.new_name()
        self.variables = {forks.STANDBY: f"{self._name} {kind}"}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "harness_verl.standby", self._name, str(os.getpid()), device],
            env={**environment, RUN_MARK: "-" * ROOM},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # the study handles Ctrl-C
        )

    def fresh(self) -> bool:
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as server:
            server.settimeout(ASK_S)
            server.connect(f"\0{self._name}")
            server.sendall(bytes(4))
            return server.recv(1) == b"\1"
        return False

    def close(self) -> None:
        stop_process(self._process)


def main() -> None:
    """Serve until the study has ended and no fork is left."""
    place, name, study, device = mark_place(), sys.argv[1], int(sys.argv[2]), sys.argv[3]
    listener = forks.listen(name)
    forks.import_ray()

    def wanted() -> bool:
        return os.getppid() == study or _has_children()

    forks.Server(listener, device, wanted, (place, ROOM)).run(forks.preloaded(device))


def _has_children() -> bool:
    try:
        os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        return False
    return True


if __name__ == "__main__":
    main()

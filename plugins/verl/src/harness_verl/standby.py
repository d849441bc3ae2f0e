"""Serve forks to trainings: `python -m harness_verl.standby NAME STARTER_PID DEVICE`.

A training starts a server while it is checked; a study starts one for all runs of a slot, so that
torch, transformers and verl are imported once. All workers are forks of it. It ends with its
starter; if a study was killed, it ends after the run that is still there.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping

from harness.contracts.trainers import Standby
from harness.errors import last_line
from harness.rollout.processes import RUN_MARK, end_session, mark_place, stop_process
from harness_verl import forks

logger = logging.getLogger(__name__)

ROOM = 255
"""Bytes for the mark of a run."""
ASK_S = 5.0
"""Seconds in which the server must report whether its imports are unchanged."""


class ForkServer(Standby):
    """A fork server for a training, or for one slot of a study.

    Args:
        environment: A run's environment, without what differs between runs.
        kind: A hash of that environment; runs of another kind do not use it.
        device: The device of those runs.
    """

    def __init__(self, environment: Mapping[str, str], kind: str, device: str) -> None:
        self._name = forks.new_name()
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  (open until the server ends)
        self.variables = {forks.STANDBY: f"{self._name} {kind}"}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "harness_verl.standby", self._name, str(os.getpid()), device],
            env={**environment, RUN_MARK: "-" * ROOM},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=self._errors,
            start_new_session=True,  # the starter handles Ctrl-C
        )

    def fresh(self) -> bool:
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as server:
            server.settimeout(ASK_S)
            server.connect(f"\0{self._name}")
            server.sendall(bytes(4))
            return server.recv(1) == b"\1"
        return False

    def close(self) -> None:
        if self._process.poll():
            self._errors.seek(0)
            reason = last_line(self._errors.read().decode(errors="replace"))
            logger.warning("workers shared no imports: %s", reason)
        stop_process(self._process)
        end_session(self._process.pid)
        self._errors.close()


def main() -> None:
    """Serve until the starter has ended and no fork is left."""
    place, name, starter, device = mark_place(), sys.argv[1], int(sys.argv[2]), sys.argv[3]
    listener = forks.listen(name)
    forks.import_ray()

    def wanted() -> bool:
        return os.getppid() == starter or _has_children()

    forks.Server(listener, device, wanted, (place, ROOM)).run(forks.preloaded(device))


def _has_children() -> bool:
    try:
        os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        return False
    return True


if __name__ == "__main__":
    main()

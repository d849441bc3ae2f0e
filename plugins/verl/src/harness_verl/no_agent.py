"""What Ray starts in its dashboard agent's place: `python no_agent.py SCRIPT --session-dir=FOLDER --node-id=ID ...`.

Nobody looks at a page or collects metrics, but a raylet waits until its agent has said where it listens, and ends with
it. As the agent of a Ray without a dashboard does, this one says: nowhere.
"""

import ctypes
import os
import signal
import sys

PORTS = ("metrics_agent_port", "metrics_export_port", "dashboard_agent_listen_port")
PR_SET_PDEATHSIG = 1


def main() -> None:
    """Say so, and stay as long as the raylet."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    told = dict(
        argument.removeprefix("--").split("=", 1) for argument in sys.argv[1:] if "=" in argument
    )
    for port in PORTS:
        path = os.path.join(told["session-dir"], f"{port}_{told['node-id']}")
        with open(f"{path}.new", "w", encoding="utf-8") as file:
            file.write("-1")
        os.rename(f"{path}.new", path)
    while True:
        signal.pause()


if __name__ == "__main__":
    main()

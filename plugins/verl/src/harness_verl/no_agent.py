"""Replace Ray's dashboard agent: `python no_agent.py SCRIPT --session-dir=FOLDER --node-id=ID ...`.

No run needs the page or its metrics, but a raylet waits until its agent has reported its ports, and
ends when the agent ends. Like the agent of a Ray without a dashboard, this one reports no port.
"""

import ctypes
import os
import signal
import sys

PORTS = ("metrics_agent_port", "metrics_export_port", "dashboard_agent_listen_port")
PR_SET_PDEATHSIG = 1


def main() -> None:
    """Report no port, and run as long as the raylet."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    options = {}
    for argument in sys.argv[1:]:
        # Ray also passes its script's path and flags without a value, which are not needed here.
        if "=" in argument:
            name, value = argument.removeprefix("--").split("=", 1)
            options[name] = value
    for port in PORTS:
        path = os.path.join(options["session-dir"], f"{port}_{options['node-id']}")
        with open(f"{path}.new", "w", encoding="utf-8") as file:
            file.write("-1")
        os.rename(f"{path}.new", path)
    while True:
        signal.pause()


if __name__ == "__main__":
    main()

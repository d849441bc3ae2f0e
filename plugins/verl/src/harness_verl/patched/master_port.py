"""Choose the port of torch's store where no outgoing connection can take it.

verl 0.9.1 binds a socket to port 0 (`get_master_addr_port` in `verl.single_controller.ray.base`),
closes it, and starts the store at this port seconds later. The kernel takes such a port from the
range of outgoing connections, so on a machine with several trainings another process may take it
in the meantime, and the training fails with EADDRINUSE. The replacement chooses a free port below
that range at random; that another training draws the same one in these seconds is possible, but
rare.
"""

from __future__ import annotations

import random
import socket
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
"""Linux: the first and the last port of outgoing connections."""
USUAL_START = 32768
"""Where that range starts unless an administrator has changed it."""
LOWEST = 20_000
"""Well-known services and the workers of `ray start` use lower ports."""


def install() -> None:
    """Replace verl's choice of a port in the process that makes verl's worker groups."""
    import ray
    from verl.single_controller.ray import base

    original: Any = vars(base)["get_master_addr_port"]._function

    def get_master_addr_port(master_port_range: list[int] | None = None) -> tuple[str, str]:
        if master_port_range is not None:
            return tuple(original(master_port_range))
        return ray.util.get_node_ip_address().strip("[]"), str(free_port())

    vars(base)["get_master_addr_port"] = ray.remote(get_master_addr_port)


def free_port() -> int:
    """Return a free port below the range of outgoing connections.

    The kernel chooses a port where a hundred attempts find none, or where that range begins below
    `LOWEST`.

    Raises:
        OSError: No port is free.
    """
    start = first_outgoing_port()
    candidates: Iterable[int] = ()
    if start > LOWEST:
        # `SystemRandom`, so that trainings with the same seed choose different ports.
        ports = range(LOWEST, start)
        candidates = random.SystemRandom().sample(ports, min(100, len(ports)))
    for port in (*candidates, 0):
        with suppress(OSError), socket.socket() as listener:
            listener.bind(("", port))
            return int(listener.getsockname()[1])
    raise OSError("no free TCP port is left on this machine: end processes that hold connections")


def first_outgoing_port() -> int:
    """Return the first port that the kernel gives to outgoing connections."""
    try:
        return int(RANGE.read_text(encoding="utf-8").split()[0])
    except (OSError, ValueError, IndexError):
        return USUAL_START

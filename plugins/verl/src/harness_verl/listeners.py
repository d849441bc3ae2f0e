"""Keep the processes of a training on one machine on loopback addresses."""

from __future__ import annotations

import secrets
import socket
from collections.abc import Mapping

import psutil

LOOPBACK = "127.0.0.1"
RAY_FINDS_ADDRESS = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
"""Environment variable of Ray 2.60. A value of 0, on Linux too, gives a run's own Ray the address
127.0.0.1, and all its processes listen there. The argument `_node_ip_address` does not work: Ray
replaces a loopback address in it."""


def loopback_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that keep a run with its own Ray on loopback addresses.

    Ray also requires a token of this run. By itself it shares one among all of a user's clusters,
    in a file with a mode that depends on the umask.

    Args:
        environment: What the user has set; it comes first.
    """
    defaults = {RAY_FINDS_ADDRESS: "0", "VLLM_HOST_IP": LOOPBACK}
    if interface := _loopback_interface():
        defaults |= {"GLOO_SOCKET_IFNAME": interface, "NCCL_SOCKET_IFNAME": interface}
    if "RAY_AUTH_MODE" not in environment:
        defaults |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    return {name: environment.get(name, value) for name, value in defaults.items()}


def _loopback_interface() -> str:
    """Return the name of the interface that has 127.0.0.1, usually `lo`."""
    for interface, addresses in psutil.net_if_addrs().items():
        for address in addresses:
            if address.family == socket.AF_INET and address.address == LOOPBACK:
                return interface
    return ""

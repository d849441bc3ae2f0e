"""Make torch's key-value store listen on loopback where its address is loopback.

The patch replaces `TCPStore` as `torch.distributed.rendezvous` of torch 2.11.0 calls it. Where the
process is to serve the store at a loopback address, the store gets a socket that is bound there.

Without it, `TCPStore` listens on all interfaces, whatever address it is given, and requires no key.
Anyone who reaches the port can read, change and remove the data with which training processes find
each other. Stores at other addresses, for trainings over several machines, do not change.

The patch acts in verl's workers (`harness_verl.isolation`) and, as a general plugin of vLLM, in the
processes of its engine.
"""

from __future__ import annotations

import contextlib
import importlib
import ipaddress
import socket
from typing import Any

BACKLOG = 2048
"""Connections that may wait to be accepted, as torch's own store has it."""


def listen_on_loopback() -> None:
    """Replace the `TCPStore` that `torch.distributed.rendezvous` calls."""
    import torch.distributed

    if torch.distributed.is_available():
        # By its name: as an attribute, `rendezvous` is a function of the module.
        rendezvous = importlib.import_module("torch.distributed.rendezvous")
        vars(rendezvous)["TCPStore"] = create_store


def create_store(host_name: str, port: int, **options: Any) -> Any:
    """Create a `TCPStore`, serving it on loopback alone where `host_name` is a loopback address."""
    distributed = importlib.import_module("torch.distributed")
    serves = options.get("is_master", False) and "master_listen_fd" not in options
    if serves and _is_loopback(host_name):
        family = socket.AF_INET6 if ":" in host_name else socket.AF_INET
        # On a port in use, this process shares a store that it serves already, or torch fails.
        with contextlib.suppress(OSError):
            listener = socket.create_server((host_name, port), family=family, backlog=BACKLOG)
            port = listener.getsockname()[1]
            options["master_listen_fd"] = listener.detach()  # the store closes it
    return distributed.TCPStore(host_name, port, **options)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"

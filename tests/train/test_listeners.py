"""Where the processes of a training listen, and what a stranger reaches there."""

from __future__ import annotations

import ipaddress
import os
import pickle
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest
import zmq

from tests.train.conftest import TWO_STEPS

LIMIT_S = 300.0
SEND_MS = 2_000
QUEUE_PROCESSES = ("TransferQueueController", "SimpleStorageUnit")
"""Actors of TransferQueue, as their titles name them."""
CODE_FOLLOWS = b"\xc1\xfe\xed"
"""First frame of a message whose second frame TransferQueue unpickles."""


class CreatesFolder:
    """Unpickled, it creates a folder."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self._path),)


@dataclass
class Watched:
    """A training that ran while strangers knocked.

    Attributes:
        listeners: Addresses by listening process, `TITLE:PORT`.
        attacked: Processes of TransferQueue that were sent code, by port.
        keyed: Whether their ZeroMQ ports require a key, by port.
        executed: Where that code leaves what it creates.
        status: Exit status of the training.
    """

    executed: Path
    listeners: dict[str, str] = field(default_factory=dict)
    attacked: dict[int, str] = field(default_factory=dict)
    keyed: dict[int, bool] = field(default_factory=dict)
    status: int | None = None
    output: str = ""

    def look(self, root: int) -> None:
        """Note the listeners of a process tree, and attack those of TransferQueue once each."""
        for process in [psutil.Process(root), *psutil.Process(root).children(recursive=True)]:
            with suppress(psutil.Error):
                title = " ".join(process.cmdline())[:200]
                for connection in process.net_connections("inet"):
                    if connection.status == psutil.CONN_LISTEN:
                        address, port = connection.laddr
                        self.listeners[f"{title}:{port}"] = address
                        if any(name in title for name in QUEUE_PROCESSES):
                            self._attack(title, address, port)

    def _attack(self, title: str, address: str, port: int) -> None:
        if port in self.attacked:
            return
        self.attacked[port] = title
        needs_key = requires_key(address, port)
        if needs_key is not None:
            self.keyed[port] = needs_key
        # The storage unit passes only such identities on to where it unpickles.
        send_code(address, port, self.executed / str(port), b"TQ_STORAGE_stranger")


def requires_key(address: str, port: int) -> bool | None:
    """Return whether a ZeroMQ port takes only peers with a key; None where it is another port.

    A peer that greets with another mechanism than the port's is answered by a signature alone.
    """
    signature = b"\xff" + bytes(8) + b"\x7f"
    greeting = signature + b"\x03\x01" + b"CURVE".ljust(20, b"\0") + bytes(32)
    answer = b""
    with suppress(OSError), socket.create_connection((reached(address), port), 10) as connection:
        connection.settimeout(2)
        connection.sendall(greeting)
        while len(answer) < len(greeting) and (piece := connection.recv(len(greeting))):
            answer += piece
    if not (answer[:1] == signature[:1] and answer[9:10] == signature[9:]):
        return None
    return answer[12:32].rstrip(b"\0") == b"CURVE"


def reached(address: str) -> str:
    """Return the address at which this machine reaches a listener."""
    return "127.0.0.1" if address in ("::", "0.0.0.0") else v4(address)


def send_code(address: str, port: int, creates: Path, identity: bytes) -> None:
    """Send a message to a port whose unpickling creates a folder."""
    context = zmq.Context()
    stranger = context.socket(zmq.DEALER)
    stranger.identity = identity
    # A port that refuses the handshake leaves no connection, and sending would wait for one.
    stranger.sndtimeo = SEND_MS
    stranger.connect(f"tcp://{reached(address)}:{port}")
    with suppress(zmq.Again):
        stranger.send_multipart([CODE_FOLLOWS, pickle.dumps(CreatesFolder(creates))])
    stranger.poll(500)
    context.destroy(linger=500)


def v4(address: str) -> str:
    """Return an address in the form of IPv4 where it is one."""
    parsed = ipaddress.ip_address(address)
    mapped = getattr(parsed, "ipv4_mapped", None)
    return str(mapped or parsed)


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    """A short training, watched and attacked from its start to its end. It has its own fork server."""
    folder = tmp_path_factory.mktemp("listeners")
    watched = Watched(folder / "executed")
    watched.executed.mkdir()
    command = [sys.executable, "-m", "harness", "train", "--agent", "reference_sql", *TWO_STEPS]
    log = folder / "log"
    with log.open("wb") as output:
        training = subprocess.Popen(
            [*command, "--runs-dir", str(folder / "runs")], stdout=output, stderr=output
        )
    try:
        ends = time.monotonic() + LIMIT_S
        while training.poll() is None and time.monotonic() < ends:
            with suppress(psutil.NoSuchProcess):
                watched.look(training.pid)
            time.sleep(0.5)
        watched.status = training.poll()
    finally:
        training.terminate()
        training.wait(60)
    watched.output = log.read_text(errors="replace")[-3000:]
    yield watched


@pytest.mark.train
def test_all_listeners_of_a_training_are_on_loopback(watched: Watched) -> None:
    assert watched.status == 0, watched.output
    known = ("harness train", "harness.gateway", "gcs_server", "raylet", "WorkerDict")
    for name in (*known, *QUEUE_PROCESSES):
        assert any(name in listener for listener in watched.listeners), watched.listeners
    reachable = reachable_from_outside(watched.listeners)
    assert not reachable


def reachable_from_outside(listeners: Mapping[str, str]) -> dict[str, str]:
    """Return the listeners that other machines reach."""
    return {
        title: address
        for title, address in listeners.items()
        if not ipaddress.ip_address(v4(address)).is_loopback
    }


@pytest.mark.train
def test_code_that_a_stranger_sends_to_transfer_queue_is_not_executed(watched: Watched) -> None:
    assert watched.status == 0, watched.output
    for name in QUEUE_PROCESSES:
        assert any(name in title for title in watched.attacked.values()), watched.listeners
    # The controller has two such ports, the storage unit one.
    assert list(watched.keyed.values()) == [True] * 3
    assert list(watched.executed.iterdir()) == []

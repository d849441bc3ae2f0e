"""Make TransferQueue accept only peers that hold the run's key.

The patch replaces `create_zmq_socket` of TransferQueue 0.1.11, the one function that opens its
ZeroMQ sockets. Each socket gets the options of CURVE, ZeroMQ's own encryption with keys. Both ends
of a run use one key pair; a handler in every context that listens refuses all other keys.

Without the patch, TransferQueue binds sockets on the node's address and unpickles what any peer
sends. Anyone who reaches such a port (on a loopback address, every user of the machine) can run
code as the user who trains. With CURVE a peer without the key is refused during the handshake,
before any of its messages is read.

`require_key` acts in every process of Ray (`isolation.set_up_worker`). A process without the patch
cannot connect to the others, so a missing patch ends a run and never opens it.
"""

from __future__ import annotations

import importlib
import os
import sys
import threading
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from harness.runs.folder import replace_text

KEY_FILE = "HARNESS_TRANSFER_QUEUE_KEY_FILE"
"""Environment variable: the file with a run's secret key, which only its owner can read."""
ZAP_ADDRESS = "inproc://zeromq.zap.01"
"""Address of the handler that accepts or refuses keys for libzmq (ZeroMQ RFC 27)."""
ZAP_DOMAIN = b"harness"


def write_key(path: Path) -> None:
    """Write a new secret key for one run, readable by its owner only."""
    import zmq

    _, secret = zmq.curve_keypair()
    replace_text(path, secret.decode("ascii"), 0o600)


def require_key() -> None:
    """Replace `create_zmq_socket` in every module of TransferQueue, if the process has a key file.

    Raises:
        OSError: The key file cannot be read.
    """
    if KEY_FILE not in os.environ:
        return
    _key_pair(os.environ[KEY_FILE])
    original = _original()
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] != "transfer_queue":
            continue
        if vars(module).get("create_zmq_socket") is original:
            vars(module)["create_zmq_socket"] = create_keyed_socket


def create_keyed_socket(ctx: Any, socket_type: Any, *arguments: Any, **options: Any) -> Any:
    """Create TransferQueue's socket with the run's key. ROUTER sockets listen, others connect."""
    import zmq

    public, secret = _key_pair(os.environ[KEY_FILE])
    socket = _original()(ctx, socket_type, *arguments, **options)
    socket.curve_publickey, socket.curve_secretkey = public, secret
    if socket_type == zmq.ROUTER:
        _check_keys(ctx, public)
        socket.curve_server = True
        socket.zap_domain = ZAP_DOMAIN
        socket.set(zmq.ZAP_ENFORCE_DOMAIN, 1)  # without a handler, refuse everyone
    else:
        socket.curve_serverkey = public
    return socket


@cache
def _original() -> Callable[..., Any]:
    """Return TransferQueue's own function, cached by a first call before its replacement."""
    module = importlib.import_module("transfer_queue.utils.zmq_utils")
    function: Callable[..., Any] = vars(module)["create_zmq_socket"]
    return function


@cache
def _key_pair(path: str) -> tuple[bytes, bytes]:
    """Return the public and the secret key, in ZeroMQ's text form."""
    import zmq

    secret = Path(path).read_text(encoding="ascii").encode("ascii")
    return zmq.curve_public(secret), secret


def _check_keys(context: Any, public: bytes) -> None:
    """Start the context's handler of handshakes, unless it has one."""
    import zmq
    from zmq.utils import z85

    # Not by `context.socket`: `context.destroy` would close the socket while the thread below
    # waits on it.
    handler = zmq.Socket(context, zmq.REP)
    try:
        handler.bind(ZAP_ADDRESS)
    except zmq.ZMQError as error:
        handler.close(linger=0)
        if error.errno != zmq.EADDRINUSE:
            raise
        return
    thread = threading.Thread(
        target=_answer_handshakes,
        args=(handler, z85.decode(public)),
        name="harness-transfer-queue-keys",
        daemon=True,
    )
    thread.start()


def _answer_handshakes(handler: Any, public: bytes) -> None:
    """Accept only the run's public key until the context ends; CURVE proves the secret key."""
    import zmq

    try:
        while True:
            request = handler.recv_multipart()
            version, request_id, _domain, _address, _identity, mechanism, *credentials = request
            accepted = mechanism == b"CURVE" and credentials == [public]
            status = (b"200", b"OK") if accepted else (b"400", b"not the key of this run")
            handler.send_multipart([version, request_id, *status, b"", b""])
    except zmq.ContextTerminated:
        handler.close(linger=0)

"""Ray's workers as forks of a process that has imported torch, transformers and verl once.

verl starts its actors one after the other, and each would import the same for seconds before its first act. Ray lets
one choose what is started in a worker's place (`py_executable`): ours is `fork_client.py`, which asks for a fork here.
The server is itself a fork of verl's driver, made before Ray starts and thus before any thread of ours: it neither
outlives the run nor serves another checkout. Where there is none, the client starts Python as Ray would.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import runpy
import secrets
import shlex
import signal
import socket
import struct
import sys
import traceback
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NoReturn

from harness import timeline
from harness.layers import at
from harness.rollout.processes import die_with_parent

CLIENT = Path(__file__).with_name("fork_client.py")
JOB_ID = "01000000"
"""Ray's id of the first job of a cluster, so of the only one of a cluster of one's own."""


def possible(settings: Mapping[str, Any]) -> bool:
    """Whether the workers of a run can be forks, given what harness sets in verl's configuration.

    On a CPU, on Linux, where Ray is the run's own. verl asks a GPU for its capability when it is imported, and CUDA
    cannot be used in a fork of a process that has started it.
    """
    on_cpu = at(settings, "trainer.device") == "cpu"
    own_ray = at(settings, "ray_kwargs.ray_init.address") == "local"
    return bool(on_cpu and own_ray and sys.platform == "linux")


def serve(modules: Iterable[str]) -> str:
    """Start a fork server and return what Ray is to start in a worker's place; call this before any import of Ray.

    Args:
        modules: What workers will want; what cannot be imported is left out.
    """
    _import_ray()
    name = f"harness-{os.getpid()}-{secrets.token_hex(8)}"
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(f"\0{name}")  # an abstract address leaves no file behind
    listener.listen(64)
    sys.stdout.flush()
    sys.stderr.flush()
    if os.fork():
        listener.close()
        return shlex.join([sys.executable, "-S", "-E", str(CLIENT), name])
    die_with_parent()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for a fork; its client sees it end
    timeline.born("server of forks")
    with timeline.span("imports for all workers"):
        for module in modules:
            with contextlib.suppress(Exception):
                importlib.import_module(module)
    gc.collect()
    gc.freeze()  # else the first collection in each fork copies every page that holds an object
    while True:
        connection, _ = listener.accept()
        with connection, contextlib.suppress(OSError, ValueError):
            _answer(listener, connection)


def _import_ray() -> None:
    """Import Ray so that its workers can be forked from this process.

    Two variables Ray reads when its library is loaded, long before there is a job, and never again: the job's id, and
    the process with whose end a worker ends too (that its raylet ends it is told otherwise).
    """
    early = {"RAY_JOB_ID": JOB_ID, "RAY_RAYLET_PID": str(os.getpid())}
    os.environ.update(early)
    importlib.import_module("ray")
    for name in early:
        del os.environ[name]


def _answer(listener: socket.socket, connection: socket.socket) -> None:
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    if struct.unpack("3i", credentials)[1] != os.getuid():  # an abstract address has no permissions of its own
        return
    header, streams, _, _ = socket.recv_fds(connection, 4, 3)
    with contextlib.ExitStack() as stack:
        for stream in streams:
            stack.callback(os.close, stream)
        with connection.makefile("rb") as reader:
            message = reader.read(int.from_bytes(header, "big"))
        if process := os.fork():
            connection.sendall(process.to_bytes(4, "big"))
            return
        listener.close()
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
    os.set_inheritable(connection.fileno(), False)  # open as long as this worker lives, and no longer
    _work(message)


def _work(message: bytes) -> NoReturn:
    """Be the worker: this process is a fresh copy."""
    directory, count, *fields = (os.fsdecode(field) for field in message.split(b"\0"))
    argv, environment = fields[: int(count)], fields[int(count) :]
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.chdir(directory)
    os.environ.clear()
    os.environ.update(dict(variable.split("=", 1) for variable in environment))
    timeline.born("Ray's worker")
    sys.argv = argv
    sys.path[0] = str(Path(argv[0]).parent)
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed()  # as in a process of its own; Python's own generator sees to itself
    sys.modules["ray._raylet"].Config.initialize("")  # Ray's settings, from these variables
    try:
        runpy.run_path(argv[0], run_name="__main__")
    except Exception:
        traceback.print_exc()
        sys.exit(1)
    sys.exit()

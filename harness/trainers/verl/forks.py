"""Ray's workers as forks of a process that has imported torch, transformers and verl once.

verl starts its actors one after the other, and each would import the same for seconds before its first act. Ray lets
one choose what is started in a worker's place (`py_executable`): ours is `fork_client.py`, which asks for a fork here.
The server is itself a fork of verl's driver, made before Ray starts and thus before any thread of ours: it neither
outlives the run nor serves another checkout. Runs of a study share one instead (`standby.py`). Where there is none, the
client starts Python as Ray would.
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
import time
import traceback
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NoReturn

from harness import timeline
from harness.layers import at
from harness.rollout.processes import RUN_MARK, carry_mark, die_with_parent

CLIENT = Path(__file__).with_name("fork_client.py")
PRELOADED = (
    "verl.trainer.main_ppo",
    "verl.workers.engine_workers",
    "verl.experimental.agent_loop.agent_loop",
    "verl.experimental.reward_loop",
    "harness.trainers.verl.sampler",
    "harness.trainers.verl.batches",
    "harness.trainers.verl.loop",
    "harness.rollout.store",
    "harness.trainers.verl.cpu_worker",
    "harness.policies.server",
)
"""What workers on a CPU import."""
STANDBY = "HARNESS_STANDBY"
"""Environment variable: the name of a server that runs of a study share."""
LOOK_S = 1.0
"""How often a server that nobody asks looks whether it is still wanted."""
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


def new_name() -> str:
    """Of a server's address."""
    return f"harness-{os.getpid()}-{secrets.token_hex(8)}"


def command(name: str) -> str:
    """What Ray is to start in a worker's place, for a fork of the server of this name."""
    return shlex.join([sys.executable, "-S", "-E", str(CLIENT), name])


def serve(modules: Iterable[str] = PRELOADED) -> str:
    """Start a fork server for one run and return what Ray is to start in a worker's place, before any import of Ray.

    Args:
        modules: What workers will want; what cannot be imported is left out.
    """
    import_ray()
    name = new_name()
    listener = listen(name)
    sys.stdout.flush()
    sys.stderr.flush()
    if os.fork():
        listener.close()
        return command(name)
    die_with_parent()
    Server(listener).run(modules)


def listen(name: str) -> socket.socket:
    """At an abstract address, which leaves no file behind."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(f"\0{name}")
    listener.listen(64)
    return listener


def import_ray() -> None:
    """Import Ray so that its workers can be forked from this process.

    Two variables Ray reads when its library is loaded, long before there is a job, and never again: the job's id, and
    the process with whose end a worker ends too (that its raylet ends it is told otherwise).
    """
    early = {"RAY_JOB_ID": JOB_ID, "RAY_RAYLET_PID": str(os.getpid())}
    os.environ.update(early)
    importlib.import_module("ray")
    for name in early:
        del os.environ[name]


class Server:
    """Answers with forks of this process.

    Args:
        wanted: Asked about once a second; False ends the server.
        mark: Where this process carries a mark that its forks overwrite with their run's, and how long it is.
    """

    def __init__(
        self, listener: socket.socket, wanted: Callable[[], bool] = lambda: True, mark: tuple[int, int] | None = None
    ) -> None:
        self._listener = listener
        self._wanted = wanted
        self._mark = mark
        self._loaded = Loaded()

    def run(self, modules: Iterable[str]) -> NoReturn:
        """Import these, then answer until nobody wants it."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for a fork; its client sees it end
        timeline.born("server of forks")
        with timeline.span("imports for all workers"):
            for module in modules:
                with contextlib.suppress(Exception):
                    importlib.import_module(module)
        if self._mark is not None:  # only who serves several runs is asked what has changed
            self._loaded.note()
        gc.collect()
        gc.freeze()  # else the first collection in each fork copies every page that holds an object
        self._listener.settimeout(LOOK_S)
        while self._wanted():
            with contextlib.suppress(TimeoutError):
                connection, _ = self._listener.accept()
                connection.setblocking(True)
                with connection, contextlib.suppress(OSError, ValueError):
                    self._answer(connection)
        sys.exit()

    def _answer(self, connection: socket.socket) -> None:
        credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        if struct.unpack("3i", credentials)[1] != os.getuid():  # an abstract address has no permissions of its own
            return
        header, streams, _, _ = socket.recv_fds(connection, 4, 3)
        with contextlib.ExitStack() as stack:
            for stream in streams:
                stack.callback(os.close, stream)
            length = int.from_bytes(header, "big")
            if not length:
                connection.sendall(bytes([self._loaded.unchanged()]))
                return
            with connection.makefile("rb") as reader:
                message = reader.read(length)
            if process := os.fork():
                connection.sendall(process.to_bytes(4, "big"))
                return
            self._listener.close()
            for number, stream in enumerate(streams):
                os.dup2(stream, number)
        os.set_inheritable(connection.fileno(), False)  # open as long as this worker lives, and no longer
        self._work(message)

    def _work(self, message: bytes) -> NoReturn:
        """Be the worker: this process is a fresh copy."""
        directory, count, *fields = (os.fsdecode(field) for field in message.split(b"\0"))
        argv, environment = fields[: int(count)], fields[int(count) :]
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.setpgid(0, 0)  # a raylet that ends kills its workers' groups
        os.chdir(directory)
        os.environ.clear()
        os.environ.update(dict(variable.split("=", 1) for variable in environment))
        if self._mark is not None:
            carry_mark(os.environ[RUN_MARK], *self._mark)
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


class Loaded:
    """The files that this process has imported, and the folders where packages are installed, as they were."""

    def __init__(self) -> None:
        self._began = time.time_ns()
        self._seen: dict[str, int] = {}

    def note(self) -> None:
        """Look at everything that is imported now."""
        files = {getattr(module, "__file__", None) for module in list(sys.modules.values())}
        folders = {path for path in sys.path if Path(path).name in ("site-packages", "dist-packages")}
        self._seen = {path: _changed(path) for path in files | folders if path}

    def unchanged(self) -> bool:
        """Whether all of them are as they were when this process began, and none is of a later time."""
        return all(_changed(path) == then < self._began for path, then in self._seen.items())


def _changed(path: str) -> int:
    """When a file was changed last, in nanoseconds; 0 where there is none."""
    try:
        return os.stat(path).st_mtime_ns
    except OSError:
        return 0

"""Ray's workers as forks of a process that has imported torch, transformers and verl once.

verl starts its actors one after the other, and each would spend seconds on the same imports before
its first action. Ray runs `fork_client.py` instead to set a worker up (`stand_in`), and the client
asks for a fork here. A training, or a study for its runs, starts a server in advance
(`standby.py`). Without one, verl's driver forks a server before Ray starts and so before harness
starts any thread: it neither outlives the run nor serves another checkout. Where there is no
server, the client starts Python as Ray would.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import fcntl
import gc
import importlib
import multiprocessing.util
import os
import runpy
import secrets
import signal
import socket
import struct
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

from harness.errors import HarnessError
from harness.rollout.processes import RUN_MARK, carry_mark, die_with_parent
from harness.rollout.queue_plugin import queue_spec
from harness.util import start_trace
from harness_verl.fork_client import HANDED, SERVER
from harness_verl.gpu_forks import cuda_starts_in_a_fork, untouched_gpu
from harness_verl.loaded import Loaded

CLIENT = Path(__file__).with_name("fork_client.py")
_EVERYWHERE = (
    "verl.trainer.main_ppo",
    "verl.workers.engine_workers",
    "verl.experimental.agent_loop.agent_loop",
    "verl.experimental.reward_loop",
    "harness_verl.sampler",
    "harness_verl.batches",
    "harness_verl.loop",
)
PRELOADED = {
    "cpu": (*_EVERYWHERE, "harness_verl.cpu_worker", "harness_policy_server.server"),
    "cuda": (
        *_EVERYWHERE,
        "verl.workers.rollout.vllm_rollout.vllm_async_server",
        "vllm.v1.engine.core",
        "vllm.v1.executor.multiproc_executor",
        "vllm.v1.worker.gpu_worker",
    ),
}
"""Modules that workers import, by device; on a GPU also those of vLLM's engine and workers."""
SPAWNED = "--multiprocessing-fork"
"""Ends the arguments of a process that `multiprocessing` spawns."""
MOST_FILES = 250
"""Approximate number of files that the kernel passes at once."""
STANDBY = "HARNESS_STANDBY"
"""Environment variable: the name of a server that was started in advance, and its kind."""
LOOK_S = 1.0
"""Seconds between the checks of an idle server whether it is still wanted."""
JOB_ID = "01000000"
"""Ray's id of the first job of a cluster, and so of the only job of a run's own cluster."""


def preloaded(device: str) -> Iterator[str]:
    """Yield the modules that workers on a device import, the one of the run's queue last."""
    yield from PRELOADED[device]
    # Without exactly one queue there is nothing to preload; the run itself reports it.
    with contextlib.suppress(HarnessError):
        yield queue_spec().target.partition(":")[0]


def possible(device: str, ray_address: str | None, deterministic: bool) -> bool:
    """Return whether the workers of a run can be forks.

    They can on Linux, where Ray is the run's own. A variable selects vLLM's deterministic kernels
    while vLLM is imported, so a deterministic run on a GPU cannot use forks.

    Args:
        ray_address: As verl receives it; `local` is a cluster of the run's own.
    """
    known = device in PRELOADED and (device == "cpu" or not deterministic)
    return known and ray_address == "local" and sys.platform == "linux"


def new_name() -> str:
    """Return a new name for a server's address."""
    return f"harness-{os.getpid()}-{secrets.token_hex(8)}"


def stand_in(name: str) -> None:
    """Have the Ray that this process starts run workers as forks of the server of this name."""
    from ray._private import ray_constants

    os.environ[SERVER] = name
    ray_constants.SETUP_WORKER_FILENAME = str(CLIENT)  # joined to the folder where Ray's own is


def serve(modules: Iterable[str], device: str = "cpu") -> str:
    """Start a fork server for one run, before any import of Ray, and return its name.

    Args:
        modules: Modules that workers need; those that cannot be imported are left out.
        device: The workers' device.
    """
    import_ray()
    name = new_name()
    listener = listen(name)
    sys.stdout.flush()
    sys.stderr.flush()
    if os.fork():
        listener.close()
        return name
    die_with_parent()
    Server(listener, device).run(modules)


def listen(name: str) -> socket.socket:
    """Listen at an abstract address, which leaves no file behind."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(f"\0{name}")
    listener.listen(64)
    return listener


def import_ray() -> None:
    """Import Ray so that its workers can be forked from this process.

    Ray reads two variables only when its library is loaded, long before there is a job: the job's
    id, and the process with which a worker ends. Therefore a worker's client kills it when its
    raylet has ended (`fork_client.py`).
    """
    early = {"RAY_JOB_ID": JOB_ID, "RAY_RAYLET_PID": str(os.getpid())}
    os.environ.update(early)
    importlib.import_module("ray")
    for name in early:
        del os.environ[name]


class Server:
    """Answers with forks of this process.

    Args:
        device: The forks' device. Where CUDA does not start in a fork of this process, the server
            ends, and workers start as Ray would start them.
        wanted: Called about once a second; False ends the server.
        mark: Position and length of this process's mark that its forks overwrite with their
            run's; None without one.
    """

    def __init__(
        self,
        listener: socket.socket,
        device: str = "cpu",
        wanted: Callable[[], bool] = lambda: True,
        mark: tuple[int, int] | None = None,
    ) -> None:
        self._listener = listener
        self._on_gpu = device != "cpu"
        self._wanted = wanted
        self._mark = mark
        self._loaded = Loaded()
        self._made: dict[str, str] = {}

    def run(self, modules: Iterable[str]) -> NoReturn:
        """Import the modules, then answer until no run needs the server."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        start_trace.born("server of forks")
        with start_trace.span("imports for all workers"):
            before = dict(os.environ)
            with unseeded_ids(), untouched_gpu() if self._on_gpu else contextlib.nullcontext():
                for module in modules:
                    if not self._wanted():
                        sys.exit()
                    with contextlib.suppress(Exception):
                        importlib.import_module(module)
            self._made = {name: value for name, value in os.environ.items() if name not in before}
        if not ids_differ_in_forks():
            sys.exit(
                "forks: Ray has drawn ids here, which they would draw too, "
                "so each worker imports for itself"
            )
        if self._on_gpu and not cuda_starts_in_a_fork():
            sys.exit("forks: CUDA does not start in a fork here, so each worker imports for itself")
        signal.signal(
            signal.SIGCHLD, signal.SIG_IGN
        )  # nothing waits for a fork here; its client notices the end
        if self._mark is not None:  # only a server of several runs must report changes
            self._loaded.note()
        gc.collect()
        gc.freeze()  # otherwise the first collection in each fork copies every page with an object
        self._listener.settimeout(LOOK_S)
        while self._wanted():
            with contextlib.suppress(TimeoutError):
                connection, _ = self._listener.accept()
                connection.setblocking(True)
                with connection, contextlib.suppress(OSError, ValueError):
                    self._answer(connection)
        sys.exit()

    def _answer(self, connection: socket.socket) -> None:
        credentials = connection.getsockopt(
            socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")
        )
        if (
            struct.unpack("3i", credentials)[1] != os.getuid()
        ):  # an abstract address has no permissions of its own
            return
        header, streams, _, _ = socket.recv_fds(connection, 4, MOST_FILES)
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
            if not connection.recv(1):  # the client ended before it could forward signals
                os._exit(0)
            # Files get the numbers that they have in the process that spawns, possibly a fork of
            # this server: where that has a file, this process has only those of this function.
            directory, handed, *fields = (os.fsdecode(field) for field in message.split(b"\0"))
            numbers = [0, 1, 2, *map(int, handed.split())]
            beyond = max(numbers) + 1
            streams = [fcntl.fcntl(stream, fcntl.F_DUPFD_CLOEXEC, beyond) for stream in streams]
            fcntl.fcntl(
                connection, fcntl.F_DUPFD_CLOEXEC, beyond
            )  # open as long as this worker lives, and no longer
            os.close(connection.detach())
        for stream, number in zip(streams, numbers, strict=True):
            os.dup2(stream, number, inheritable=number < 3)
            os.close(stream)
        self._work(directory, *fields)

    def _work(self, directory: str, count: str, *fields: str) -> NoReturn:
        """Run the worker in this process, a fresh copy of the server.

        Args:
            count: Of the first fields, which are its arguments; the others are its variables.
        """
        argv, environment = list(fields[: int(count)]), fields[int(count) :]
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.setpgid(0, 0)  # a raylet that ends kills its workers' groups
        os.chdir(directory)
        os.environ.clear()
        os.environ.update(self._made | dict(variable.split("=", 1) for variable in environment))
        if self._mark is not None:
            carry_mark(os.environ[RUN_MARK], *self._mark)
        tempfile.tempdir = None  # to be looked up again
        if numpy := sys.modules.get("numpy"):
            numpy.random.seed()  # as in a new process; Python reseeds its own generator after a fork
        sys.modules["ray._raylet"].Config.initialize("")  # Ray's settings, from these variables
        spawn_through_client()
        try:
            if argv[-1] == SPAWNED:
                start_trace.born("spawned by a worker")
                sys.argv = ["-c", SPAWNED]
                exec(argv[-2], {"__name__": "__main__"})
            else:
                start_trace.born("Ray's worker")
                sys.argv = argv
                sys.path[0] = str(Path(argv[0]).parent)
                runpy.run_path(argv[0], run_name="__main__")
        except Exception:
            traceback.print_exc()
            sys.exit(1)
        sys.exit()


@contextlib.contextmanager
def unseeded_ids() -> Iterator[None]:
    """Import what draws Ray's ids, and leave the source of ids untouched.

    Ray's library seeds every thread from a pool that it fills from the system's at a process's
    first id. If that happens before a fork, the threads of all forks draw equal ids. Of two workers
    that warm up Ray's store at once with an object of the same id, one dies. An actor that two
    workers call at once under the same id dies, too. Imports draw one id for each class of actors.
    """
    actor = importlib.import_module("ray.actor")
    drawn = actor.ActorClassID

    class FromTheSystem:
        @staticmethod
        def from_random() -> Any:
            return drawn(os.urandom(drawn.size()))

    vars(actor)["ActorClassID"] = FromTheSystem
    try:
        yield
    finally:
        vars(actor)["ActorClassID"] = drawn


def ids_differ_in_forks() -> bool:
    """Return whether two forks of this process draw different ids, each in a thread of its own."""
    drawn = []
    for _ in range(2):
        reader, writer = os.pipe()
        process = os.fork()
        if not process:
            with concurrent.futures.ThreadPoolExecutor(1) as thread:
                os.write(
                    writer,
                    thread.submit(sys.modules["ray._raylet"].UniqueID.from_random)
                    .result()
                    .binary(),
                )
            os._exit(0)
        os.close(writer)
        with open(reader, "rb") as answer:
            drawn.append(answer.read())
        os.waitpid(process, 0)
    return drawn[0] != drawn[1]


def spawn_through_client() -> None:
    """Have `multiprocessing` spawn processes as forks of this one's server."""
    launch = multiprocessing.util.spawnv_passfds

    def spawn(path: bytes, arguments: Sequence[Any], handed: Sequence[int]) -> int:
        if arguments[-1] == SPAWNED:
            interpreter, *others = arguments
            arguments = [
                interpreter,
                "-S",
                "-E",
                str(CLIENT),
                HANDED + " ".join(map(str, handed)),
                *others,
            ]
        return launch(path, arguments, handed)

    multiprocessing.util.spawnv_passfds = spawn  # type: ignore[assignment]

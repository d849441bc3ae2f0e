"""Start a worker as a fork: Ray runs `python fork_client.py default_worker.py ARGUMENT ...`.

Processes that a worker spawns with `multiprocessing` also start here, with `--handed="3 4" -c CODE
--multiprocessing-fork`, where the numbers are files that must be open there too. The client asks
the fork server that HARNESS_FORK_SERVER names (`forks.py`) for a process that runs the command, and
waits until that process ends. If the client's own parent ends, which is Ray's node agent or the
worker that spawned a process, the client kills that process: it is a child of the server, so
nothing else ties it to them. Where no server answers, the client becomes what Ray or
`multiprocessing` would have started. It imports little of the standard library, because every
worker waits for it.
"""

import contextlib
import json
import os
import re
import signal
import socket
import sys

CONTEXT = "--serialized-runtime-env-context="
HANDED = "--handed="
"""Prefix of the argument with the numbers of the open files that a process gets."""
SERVER = "HARNESS_FORK_SERVER"
"""Environment variable: the name of the server that workers are forks of."""
LOOK_S = 1.0
"""Seconds between two checks whether the client's parent still runs."""


def main() -> None:
    """Become the worker, or wait for the fork that is the worker."""
    parent = os.getppid()
    given, before = sys.argv[1:], dict(os.environ)
    if given[0].startswith(HANDED):
        handed, *argv = given
        instead, simple = argv, True
    else:
        argv = [word for word in given if not word.startswith((CONTEXT, "--language="))]
        handed = HANDED
        # Without a fork server, start the worker as Ray does.
        instead = [os.path.join(os.path.dirname(argv[0]), "setup_worker.py"), *given]
        contexts = [word for word in given if word.startswith(CONTEXT)]
        simple = set_up(contexts[0] if contexts else CONTEXT)
    if not (simple and forked(argv, handed.removeprefix(HANDED), parent)):
        os.execve(sys.executable, [sys.executable, *instead], before)


def set_up(context: str) -> bool:
    """Set a runtime environment's variables as Ray does; return whether it has nothing else."""
    context_fields = json.loads(context.removeprefix(CONTEXT) or "{}")
    own = context_fields.pop("py_executable", sys.executable) != sys.executable
    for name, value in context_fields.pop("env_vars", {}).items():
        os.environ[name] = re.sub(r"\$\{[A-Z0-9_]+\}", "", os.path.expandvars(value))
    return not own and not any(context_fields.values())


def forked(argv: list[str], handed: str, parent: int) -> bool:
    """Have a fork of the server run this, and wait for its end.

    Args:
        parent: The process that started the client. When it has ended, the fork is killed.

    Returns:
        Whether a fork ran this, or is no longer needed.
    """
    passed_on: list[int] = []
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as server:
        server.connect(f"\0{os.environ[SERVER]}")
        environment = [f"{name}={value}" for name, value in os.environ.items()]
        fields = (os.getcwd(), handed, str(len(argv)), *argv, *environment)
        message = b"\0".join(os.fsencode(field) for field in fields)
        files = [0, 1, 2, *map(int, handed.split())]
        socket.send_fds(server, [len(message).to_bytes(4, "big")], files)
        server.sendall(message)
        if answer := received(server, parent):
            # Unlike the worker's id, this never refers to a later process.
            worker = os.pidfd_open(int.from_bytes(answer, "big"))

            def pass_on(number: int, _: object) -> None:
                passed_on.append(number)
                with contextlib.suppress(ProcessLookupError):  # the worker has ended
                    signal.pidfd_send_signal(worker, number)

            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, pass_on)
            server.sendall(b"\1")  # the worker waits until signals to this process reach it
            received(server, parent)  # the worker holds the other end open as long as it lives
            if os.getppid() != parent:
                signal.pidfd_send_signal(worker, signal.SIGKILL)
            return True
    return bool(passed_on) or os.getppid() != parent


def received(connection: socket.socket, parent: int) -> bytes:
    """Return what comes next; nothing if the other end is closed or this process's parent ended."""
    connection.settimeout(LOOK_S)
    while os.getppid() == parent:
        with contextlib.suppress(TimeoutError):
            return connection.recv(4)
    return b""


if __name__ == "__main__":
    main()

"""What Ray starts in a worker's place: `python -S -E fork_client.py NAME SCRIPT ARGUMENT ...`.

And what a worker starts where `multiprocessing` spawns: `... NAME --handed="3 4" -c CODE --multiprocessing-fork`, with
the numbers of files that are to be open there too. Asks the fork server `NAME` (`forks.py`) for a process that runs it,
and stays until that process ends. Where no server answers it becomes that process itself. It needs little of the
standard library: it is on every worker's way.
"""

import contextlib
import os
import signal
import socket
import sys


def main() -> None:
    """Become, or stand for, the worker."""
    name, argv, handed = sys.argv[1], sys.argv[2:], ""
    if argv[0].startswith("--handed="):
        handed = argv.pop(0).removeprefix("--handed=")
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as server:
        server.connect(f"\0{name}")
        environment = [f"{key}={value}" for key, value in os.environ.items()]
        fields = (os.getcwd(), handed, str(len(argv)), *argv, *environment)
        message = b"\0".join(os.fsencode(field) for field in fields)
        files = [0, 1, 2, *map(int, handed.split())]
        socket.send_fds(server, [len(message).to_bytes(4, "big")], files)
        server.sendall(message)
        if answer := server.recv(4):
            worker = int.from_bytes(answer, "big")
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, lambda number, _: os.kill(worker, number))
            server.recv(1)  # the worker holds the other end open as long as it lives
            return
    os.execv(sys.executable, [sys.executable, *argv])


if __name__ == "__main__":
    main()

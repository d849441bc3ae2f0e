"""What Ray starts in a worker's place: `python -S -E fork_client.py NAME SCRIPT ARGUMENT ...`.

Asks the fork server `NAME` (`forks.py`) for a process that runs the script, and stays until that process ends. Where no
server answers it becomes the script itself. It needs little of the standard library: it is on every worker's way.
"""

import contextlib
import os
import signal
import socket
import sys


def main() -> None:
    """Become, or stand for, the worker."""
    name, argv = sys.argv[1], sys.argv[2:]
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as server:
        server.connect(f"\0{name}")
        environment = [f"{key}={value}" for key, value in os.environ.items()]
        fields = (os.getcwd(), str(len(argv)), *argv, *environment)
        message = b"\0".join(os.fsencode(field) for field in fields)
        socket.send_fds(server, [len(message).to_bytes(4, "big")], [0, 1, 2])
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

"""Copy between stdin and stdout and a Unix socket: `python -I -S bridge.py SOCKET`.

A command-line agent starts this script as its MCP server. The tools are carried out at the other end of the socket.
Standard library only, for a fast start.
"""

import os
import socket
import sys
import threading

CHUNK = 1 << 16


def main() -> None:
    """Copy until either end closes."""
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(sys.argv[1])

    def upward() -> None:
        while chunk := os.read(0, CHUNK):
            connection.sendall(chunk)
        connection.shutdown(socket.SHUT_WR)

    threading.Thread(target=upward, daemon=True).start()
    while chunk := connection.recv(CHUNK):
        while chunk:
            chunk = chunk[os.write(1, chunk) :]


if __name__ == "__main__":
    main()

"""`harness store`."""

from __future__ import annotations

import asyncio
import logging
import socket
import sys
from pathlib import Path
from typing import Annotated

import typer

from harness.cli.common import say
from harness.errors import EnvironmentProblem
from harness.util.http_server import BoundedServer, Limits, fitting, raise_descriptors

app = typer.Typer(add_completion=False)

PORT = 4747
"""agentlightning's default port."""


@app.command()
def store(
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port to listen on; 0 takes a free one.")
    ] = PORT,
    key_file: Annotated[
        Path | None,
        typer.Option(
            help="File with the key, created if missing; by default HARNESS_STORE_KEY, or a file in the cache."
        ),
    ] = None,
) -> None:
    """Keep the rollouts of runs in a separate process that trainings and runners connect to.

    All data are in its memory. After a restart of the store, runs enqueue lost rollouts again.
    """
    from harness_distributed.remote_queue import key_place, store_key

    key = store_key(key_file)  # report errors before the slow imports
    listener = listening(host, port)
    from harness_agentlightning_queue.store import quiet
    from harness_distributed.places import Places

    quiet()
    raise_descriptors()
    limits = Limits(connections=fitting())
    own = listener.getsockname()[1]

    class Announced(BoundedServer):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            if self.started:
                say(
                    f"store: http://{f'[{host}]' if ':' in host else host}:{own} "
                    f"(its key: {key_place(key_file)})"
                )
                sys.stdout.flush()

    async def serve() -> None:
        server = Announced(
            Places(key), limits, lifespan="on", log_level=logging.CRITICAL, server_header=False
        )
        await server.serve(sockets=[listener])

    asyncio.run(serve())


def listening(host: str, port: int) -> socket.socket:
    """Return a listening socket.

    Raises:
        EnvironmentProblem: The address is not available.
    """
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        made = socket.socket(family, socket.SOCK_STREAM)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind((host, port))
    except OSError as error:
        raise EnvironmentProblem(
            f"cannot listen on {host}:{port}: {error.strerror}. "
            "Give another --port, or --port 0 for a free one"
        ) from error
    return made

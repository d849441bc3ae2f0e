"""A server's process and its messages over stdio, with messages of bounded length.

The SDK's own client holds a line of any length, and copies it with every further chunk.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
from asyncio.subprocess import Process
from collections.abc import AsyncIterator

from mcp.client.stdio import get_default_environment
from mcp.shared.message import SessionMessage
from mcp.types import JSONRPCMessage

from harness.rollout.processes import RUN_MARK
from harness_mcp_tools.servers import Server
from harness_mcp_tools.streams import MAX_BYTES, Streams, too_long

END_S = 1.0
"""Seconds in which a process must end after its stdin is closed, and again after SIGTERM."""
_ENDS = 4096
"""Bytes at each end of an overlong message that may contain its request id."""
_ID = re.compile(rb'"id"\s*:\s*(\d+)')
_FIRST = re.compile(rb'\s*\{\s*(?:"jsonrpc"\s*:\s*"2\.0"\s*,\s*)?"id"\s*:\s*(\d+)')


@contextlib.asynccontextmanager
async def stdio(server: Server) -> AsyncIterator[Streams]:
    """Start a server's process, and end it with all its children.

    Raises:
        OSError: It cannot be started.
        EnvironmentFault: A variable that it gets is not set here.
    """
    named = {name: server.value_of(name) for name in server.env}
    marked = (
        {RUN_MARK: os.environ[RUN_MARK]} if RUN_MARK in os.environ else {}
    )  # identifies processes that outlive a run
    process = await asyncio.create_subprocess_exec(
        server.command,
        *server.args,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**get_default_environment(), **marked, **named},
        start_new_session=True,
        limit=MAX_BYTES,
    )
    streams = Streams()
    tasks = [asyncio.create_task(work(process, streams)) for work in (_read, _write, _listen)]
    try:
        yield streams
    finally:
        await _end(process)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _read(process: Process, streams: Streams) -> None:
    """Pass the server's messages on until it closes its stdout."""
    assert process.stdout is not None
    async with streams.incoming:
        while True:
            try:
                line = await process.stdout.readuntil(b"\n")
            except asyncio.LimitOverrunError:
                await streams.incoming.send(await _skipped(process.stdout))
                continue
            except asyncio.IncompleteReadError:
                streams.ended.set()
                return
            with contextlib.suppress(ValueError):  # other output of the program
                await streams.incoming.send(
                    SessionMessage(JSONRPCMessage.model_validate_json(line))
                )


async def _skipped(stdout: asyncio.StreamReader) -> SessionMessage:
    """Skip an overlong message, and return an error for its request instead."""
    head, tail = b"", b""
    while True:
        try:
            tail = (tail + await stdout.readuntil(b"\n"))[-_ENDS:]
            break
        except asyncio.LimitOverrunError as error:
            part = await stdout.readexactly(max(1, error.consumed))
            head, tail = head or part[:_ENDS], part[-_ENDS:]
    found = _FIRST.match(head) or next(reversed(list(_ID.finditer(tail))), None)
    return too_long(int(found.group(1)) if found else -1)


async def _write(process: Process, streams: Streams) -> None:
    """Send messages to the server until it no longer accepts them."""
    assert process.stdin is not None
    async with streams.outgoing:
        async for message in streams.outgoing:
            text = message.message.model_dump_json(by_alias=True, exclude_none=True)
            process.stdin.write(text.encode() + b"\n")
            with contextlib.suppress(ConnectionError):
                await process.stdin.drain()


async def _listen(process: Process, streams: Streams) -> None:
    """Keep the server's last line on stderr, which usually states why it ended."""
    assert process.stderr is not None
    while chunk := await process.stderr.read(1 << 16):
        last_line = chunk.decode(errors="replace").strip().rpartition("\n")[2].strip()
        streams.last_line = last_line[-300:] or streams.last_line


async def _end(process: Process) -> None:
    """End the process according to the protocol: close stdin, wait, terminate, kill.

    Its children end with it.
    """
    assert process.stdin is not None
    process.stdin.close()
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(END_S):
                await process.wait()
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, number)
        if process.returncode is not None:
            return
    await process.wait()

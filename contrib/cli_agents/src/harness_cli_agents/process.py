"""One run of a command in a process group of its own, which ends with it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from harness.errors import RolloutError

MAX_BYTES = 4 << 20
"""Most bytes that a command may write to its output, and to its answer file."""
LOOK_S = 1.0
"""Seconds between two checks of the size of the output."""
_ERROR = re.compile(r"\W*(?:\w*error|fatal)\b", re.IGNORECASE)


class CommandFailed(RolloutError):
    """The command ended without an answer: by its status, by too much output, or with none."""


@dataclass(frozen=True, slots=True)
class Finished:
    """Status and output of a command that has ended.

    Attributes:
        status: Exit status, negative for a signal.
        output: All of stdout.
        reason: The line of its output that most likely states why it ended, see `reason_in`.
    """

    status: int
    output: str
    reason: str


async def run(
    command: Sequence[str],
    variables: Mapping[str, str],
    folder: Path,
    streams: Path,
    stdin: str,
    failed: asyncio.Future[int],
) -> Finished:
    """Run a command to its end. Every process that it started ends with it, also at a cancellation.

    Files are its streams, so that a process in the background which keeps them open delays nothing.

    Args:
        variables: All environment variables; HOME is `folder`.
        folder: The working folder, which no other process has as its HOME.
        streams: Folder for the files of stdin, stdout and stderr.
        failed: The status of a failed model call, which ends the command.

    Raises:
        CommandFailed: It cannot be started, a model call failed, or it writes more than `MAX_BYTES`.
    """
    read, output, errors = (streams / name for name in ("stdin", "stdout", "stderr"))
    read.write_text(stdin, encoding="utf-8")
    try:
        with read.open("rb") as in_, output.open("wb") as out, errors.open("wb") as err:
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=in_,
                stdout=out,
                stderr=err,
                env=dict(variables),
                cwd=folder,
                start_new_session=True,
            )
    except (OSError, ValueError) as error:
        raise CommandFailed(f"{command[0]} does not start: {error}") from error
    try:
        await _ended(process, (output, errors), failed)
    finally:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        await asyncio.to_thread(_end_escaped, str(folder))
        await process.wait()
    text, error_text = limited(output), limited(errors)
    status = process.returncode
    assert status is not None
    return Finished(status, text, reason_in(error_text) or reason_in(text) or "no output")


def reason_in(output: str) -> str:
    """Return the line that most likely states why a command ended; empty if there is no text.

    It is the last line that begins with the name of an error, because some commands end with
    statistics such as the number of used tokens; else the last line with a letter; else the last.
    """
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line for line in lines if _ERROR.match(line)]
    texts = [line for line in lines if any(character.isalpha() for character in line)]
    candidates = errors or texts or lines
    return candidates[-1] if candidates else ""


def limited(file: Path) -> str:
    """Return the text of a file.

    Raises:
        CommandFailed: It has more than `MAX_BYTES`.
        OSError: It cannot be read.
    """
    with file.open("rb") as opened:
        content = opened.read(MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        raise CommandFailed(f"{file.name} has more than {MAX_BYTES >> 20} MiB")
    return content.decode("utf-8", errors="replace")


async def _ended(
    process: asyncio.subprocess.Process, written: Sequence[Path], failed: asyncio.Future[int]
) -> None:
    """Wait for the end of a process. Refuse a failed model call and too much output."""
    ending = asyncio.ensure_future(process.wait())
    try:
        await _watched(ending, written, failed)
    finally:
        ending.cancel()
        await asyncio.gather(ending, return_exceptions=True)


async def _watched(
    ending: asyncio.Future[int], written: Sequence[Path], failed: asyncio.Future[int]
) -> None:
    while not ending.done():
        await asyncio.wait({ending, failed}, timeout=LOOK_S, return_when=asyncio.FIRST_COMPLETED)
        if failed.done():
            raise CommandFailed(f"a model call failed with status {failed.result()}")
        for file in written:
            if file.stat().st_size > MAX_BYTES:
                raise CommandFailed(f"{file.name} has more than {MAX_BYTES >> 20} MiB")


def _end_escaped(home: str) -> None:
    """Kill descendants that left the process group. Their HOME identifies them (Linux)."""
    for _ in range(3):  # a process may start another one meanwhile
        left = [process for process in psutil.process_iter() if _home(process) == home]
        for process in left:
            with contextlib.suppress(psutil.Error):
                process.kill()
        if not left:
            return
        psutil.wait_procs(left, timeout=0.5)


def _home(process: psutil.Process) -> str | None:
    with contextlib.suppress(psutil.Error, OSError):
        return process.environ().get("HOME")
    return None

"""`--debug`: copy the logs of a run's processes to stderr while they are written."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from harness.cli.common import complain

EVERY_S = 0.5
VARIABLES = {"HARNESS_LOG_LEVEL": "INFO", "VERL_LOGGING_LEVEL": "DEBUG"}
"""Variables that make runners and verl log more."""
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


@contextmanager
def followed(folder: Path) -> Iterator[None]:
    """Copy lines added to the `*.log` files of a folder to stderr, each with its file's name."""
    own = {name: value for name, value in VARIABLES.items() if name not in os.environ}
    os.environ.update(own)
    read = {file: file.stat().st_size for file in folder.glob("*.log")}
    over = threading.Event()
    thread = threading.Thread(target=_follow, args=(folder, read, over), daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        for name in own:
            os.environ.pop(name, None)


def _follow(folder: Path, read: dict[Path, int], over: threading.Event) -> None:
    last = False
    while not last:
        last = over.wait(EVERY_S)
        for file in sorted(folder.glob("*.log")):
            with suppress(OSError), file.open("rb") as log:
                # A log that got too long is cut, and may then be shorter than what was read.
                read[file] = min(read.get(file, 0), os.fstat(log.fileno()).st_size)
                log.seek(read[file])
                whole, newline, rest = log.read().rpartition(b"\n")
                if last:
                    whole, newline = whole + newline + rest, b""
                read[file] += len(whole) + len(newline)
                for line in _COLOUR.sub("", whole.decode(errors="replace")).splitlines():
                    complain(f"{file.name}: {line}")

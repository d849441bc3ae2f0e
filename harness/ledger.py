"""What is paid for outside of a run: each answer once among all processes, and a count of what it took."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, BinaryIO

LEDGER = "ledger.jsonl"
"""Name of the file that counts calls, a line each."""
_FIRST_LOOK_S, _LAST_LOOK_S = 0.01, 0.5

Entry = dict[str, Any]


class Paid:
    """Answers by key, a file each, which is also the lock under which it is asked for. A killed process leaves none.

    One instance belongs to one event loop.

    Args:
        folder: Where they are; processes that share it ask once.
        fits: Whether what a file has is an answer; one that was cut off or damaged is asked for again.
    """

    def __init__(self, folder: Path, fits: Callable[[Any], bool]) -> None:
        self._folder = folder
        self._fits = fits
        self._asking: dict[str, asyncio.Task[tuple[Entry, bool]]] = {}

    async def once(self, key: str, ask: Callable[[], Awaitable[Entry]]) -> tuple[Entry, bool]:
        """The answer, and whether it was paid for by this call.

        Who asks while it is being asked for waits, and gets what came of it, an exception of `ask` included. Nobody's
        cancellation ends what others wait for.
        """
        if task := self._asking.get(key):
            return (await asyncio.shield(task))[0], False
        task = self._asking[key] = asyncio.create_task(self._once(key, ask))
        task.add_done_callback(
            lambda done: self._asking.pop(key) and (done.cancelled() or done.exception())
        )
        return await asyncio.shield(task)

    async def _once(self, key: str, ask: Callable[[], Awaitable[Entry]]) -> tuple[Entry, bool]:
        path = self._folder / key[:2] / f"{key}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a+b", buffering=0) as file:
            await _lock(file)
            file.seek(0)
            if (found := self._parsed(file.read())) is not None:
                return found, False
            made = await ask()
            with contextlib.suppress(
                OSError
            ):  # a full disk must not cost an answer; half a file is no answer
                file.truncate(0)
                file.write(json.dumps(made).encode())
            return made, True

    def _parsed(self, data: bytes) -> Entry | None:
        try:
            found = json.loads(data)
        except ValueError:
            return None
        return found if isinstance(found, dict) and self._fits(found) else None


async def _lock(file: BinaryIO) -> None:
    wait_s = _FIRST_LOOK_S
    while True:
        try:
            return fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            await asyncio.sleep(wait_s)
            wait_s = min(1.5 * wait_s, _LAST_LOOK_S)


class Ledger:
    """Appends a line for each call, whole, whichever process writes; without a folder nothing is kept."""

    def __init__(self, folder: Path | None = None) -> None:
        self._path = folder / LEDGER if folder is not None else None

    def add(
        self, model: str, outcome: str, prompt_tokens: int = 0, completion_tokens: int = 0
    ) -> None:
        """Count one call.

        Args:
            outcome: `ok`, `cached` for an answer that was there, else what went wrong.
        """
        if self._path is None:
            return
        line = {"model": model, "outcome": outcome, "prompt_tokens": prompt_tokens}
        data = json.dumps(line | {"completion_tokens": completion_tokens}).encode() + b"\n"
        self._path.parent.mkdir(parents=True, exist_ok=True)
        file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(file, data)
        finally:
            os.close(file)


def spent(folder: Path) -> dict[str, int]:
    """What all ledgers below a folder add up to; empty where there is none."""
    total: Counter[str] = Counter()
    for path in sorted(folder.rglob(LEDGER)):
        for line in path.read_bytes().splitlines():
            with contextlib.suppress(ValueError):  # a killed process may leave half a line
                row = json.loads(line)
                total[{"cached": "cached", "ok": "calls"}.get(row["outcome"], "failed_calls")] += 1
                total.update({name: row[name] for name in ("prompt_tokens", "completion_tokens")})
    names = ("calls", "failed_calls", "cached", "prompt_tokens", "completion_tokens")
    return {name: total[name] for name in names} if total else {}

"""Paid calls outside of a run: processes share answers, and a ledger counts the calls."""

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
"""Name of the file that counts calls, one per line."""
_FIRST_LOOK_S, _LAST_LOOK_S = 0.01, 0.5

Entry = dict[str, Any]


class Paid:
    """A cache of paid answers, one file per key.

    The file is also the lock; a killed process releases it.

    One instance belongs to one event loop.

    Args:
        folder: Folder of the answers; processes that share it pay once.
        fits: Whether a file's content is a valid answer; a truncated or damaged answer is requested
            again.
    """

    def __init__(self, folder: Path, fits: Callable[[Any], bool]) -> None:
        self._folder = folder
        self._fits = fits
        self._asking: dict[str, asyncio.Task[tuple[Entry, bool]]] = {}

    async def once(self, key: str, ask: Callable[[], Awaitable[Entry]]) -> tuple[Entry, bool]:
        """Return the answer, and whether this call paid for it.

        Concurrent callers of the same key wait and get the same outcome, including an exception of
        `ask`. Cancelling one caller does not cancel the request of the others.
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
            if (stored := self._parsed(file.read())) is not None:
                return stored, False
            answer = await ask()
            # A full disk must not lose an answer; a partial file is no answer.
            with contextlib.suppress(OSError):
                file.truncate(0)
                file.write(json.dumps(answer).encode())
            return answer, True

    def _parsed(self, data: bytes) -> Entry | None:
        try:
            entry = json.loads(data)
        except ValueError:
            return None
        return entry if isinstance(entry, dict) and self._fits(entry) else None


async def _lock(file: BinaryIO) -> None:
    wait_s = _FIRST_LOOK_S
    while True:
        try:
            return fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            await asyncio.sleep(wait_s)
            wait_s = min(1.5 * wait_s, _LAST_LOOK_S)


class Ledger:
    """Append one whole line per call, from any number of processes.

    Without a folder it records nothing.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._path = folder / LEDGER if folder is not None else None

    def add(
        self, model: str, outcome: str, prompt_tokens: int = 0, completion_tokens: int = 0
    ) -> None:
        """Count one call.

        Args:
            outcome: `ok`, `cached` for a stored answer, otherwise the error.
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
    """Sum all ledgers below a folder; empty if there are none."""
    total: Counter[str] = Counter()
    for path in sorted(folder.rglob(LEDGER)):
        for line in path.read_bytes().splitlines():
            with contextlib.suppress(ValueError):  # a killed process may leave a partial line
                row = json.loads(line)
                total[{"cached": "cached", "ok": "calls"}.get(row["outcome"], "failed_calls")] += 1
                prompt, completion = row["prompt_tokens"], row["completion_tokens"]
                total.update(prompt_tokens=prompt, completion_tokens=completion)
    names = ("calls", "failed_calls", "cached", "prompt_tokens", "completion_tokens")
    return {name: total[name] for name in names} if total else {}

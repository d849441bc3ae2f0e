"""The environment `tau2`: a domain's tools over a database of the attempt's own, carried out in side processes."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

from harness import Environment, EnvironmentFault, Observation, RolloutError, Task, TaskSetError, Tool, check_offered
from harness.records import JSON
from harness_side import Pool
from harness_tau2.data import Manifest
from harness_tau2.process import SideProcess
from harness_tau2.side.messages import Asked

SESSIONS = 32
"""Attempts that share a side process, one of whose calls waits for the others' and which it takes along if it ends."""
START_S = 25.0
"""How long a side process may take until it has a session."""
CLOSE_S = 9.0
Payload: TypeAlias = Mapping[str, Any]
ENVIRONMENT = "tau2"
"""Where a task's data has what its tools need."""


class Tau2Environment(Environment):
    """The tools of the task's domain, as they were when the data was fetched."""

    def __init__(self) -> None:
        self._pools: dict[tuple[str, str], Pool[SideProcess]] = {}

    def payload(self, task: Task, limits: Mapping[str, JSON]) -> Mapping[str, JSON]:
        return {**task.data[ENVIRONMENT], "limits": {name: limits[name] for name in ("timeout_s", "max_chars")}}

    def tools_for(self, payload: Payload) -> tuple[Tool, ...]:
        return tuple(Tool(**one) for one in payload["tools"])

    def check(self, payload: Payload) -> None:
        try:
            found = Manifest.read(Path(payload["folder"]))
        except TaskSetError as error:
            raise RolloutError(f"{error}. A runner on another machine needs it at that path") from error
        if found.sha256 != payload["sha256"]:
            raise RolloutError(
                f"{payload['folder']} has other data than the tasks are of. Fetch the same on both sides"
            )

    async def open(self, payload: Payload, attempt: str) -> Tau2Session:
        key = (payload["folder"], payload["domain"])
        if key not in self._pools:
            start = partial(SideProcess, Path(key[0]), key[1])
            self._pools[key] = Pool(start, f"the side process of {key[1]!r}", SESSIONS)
        pool = self._pools[key]
        session = Tau2Session(pool, attempt, payload)
        await session.open()
        return session


class Tau2Session:
    """One attempt's database. It leaves behind which records have changed, each with a digest of what it is now."""

    def __init__(self, pool: Pool[SideProcess], attempt: str, payload: Payload) -> None:
        self._pool, self._attempt = pool, attempt
        self._limit_s: float = payload["limits"]["timeout_s"]
        self._max_chars: int = payload["limits"]["max_chars"]
        self._promised = [Tool(**one) for one in payload["tools"]]
        self._process: SideProcess | None = None

    async def open(self) -> None:
        """Get a database in a process that offers what the agent is told of.

        Raises:
            EnvironmentFault: There is none to be had.
        """
        self._process = process = await asyncio.to_thread(self._pool.get)
        try:
            offered = await process.ask(START_S, {"do": "open", "session": self._attempt})
            check_offered(self._promised, [Tool(**one) for one in offered["tools"]])
        except BaseException:
            with contextlib.suppress(EnvironmentFault):
                process.asked({"do": "close", "session": self._attempt})  # by whoever is cancelled, too
            self._pool.leave(process)
            raise

    async def call(self, tool: str, arguments: Mapping[str, JSON]) -> Observation:
        assert self._process is not None
        asked: Asked = {"do": "call", "session": self._attempt, "tool": tool, "arguments": dict(arguments)}
        said = await self._process.ask(self._limit_s, {**asked, "max_chars": self._max_chars})
        return Observation(said["text"], said["ok"])

    async def close(self) -> Mapping[str, JSON]:
        assert self._process is not None
        try:
            left = await self._process.ask(CLOSE_S, {"do": "close", "session": self._attempt})
        finally:
            self._pool.leave(self._process)
        return {"changes": left["changes"]}

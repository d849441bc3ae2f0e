"""The environment `tau2`: a domain's tools over an attempt's own database, in subprocesses."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from harness import RolloutError, TaskSetError
from harness.records import JSON
from harness_subprocess_environments import Payload, Pool, SubprocessEnvironment, SubprocessSession
from harness_tau2.data import Manifest
from harness_tau2.process import Subprocess
from harness_tau2.worker.messages import Answer

SESSIONS = 32
"""Attempts that share a subprocess. Their calls wait for each other, and they end together if it
ends.
"""
START_S = 25.0
"""Seconds until a subprocess has opened a session."""
ENVIRONMENT = "tau2"
"""Key in a task's data for its tools."""


class Tau2Environment(SubprocessEnvironment):
    """The tools of the task's domain, frozen when the data was fetched."""

    data = ENVIRONMENT

    def __init__(self) -> None:
        self._pools: dict[tuple[str, str], Pool[Subprocess]] = {}

    def check(self, payload: Payload) -> None:
        try:
            manifest = Manifest.read(Path(payload["folder"]))
        except TaskSetError as error:
            raise RolloutError(
                f"{error}. A runner on another machine needs it at that path"
            ) from error
        if manifest.sha256 != payload["sha256"]:
            raise RolloutError(
                f"{payload['folder']} has other data than the tasks. "
                "Fetch the same data on both machines"
            )

    async def open(self, payload: Payload, attempt: str) -> Tau2Session:
        key = (payload["folder"], payload["domain"])
        if key not in self._pools:
            start = partial(Subprocess, Path(key[0]), key[1])
            self._pools[key] = Pool(start, f"the subprocess of {key[1]!r}", SESSIONS)
        pool = self._pools[key]
        session = Tau2Session(pool, await asyncio.to_thread(pool.get), attempt, payload)
        try:
            await session.open(START_S)
        except BaseException:
            session.leave()
            raise
        return session


class Tau2Session(SubprocessSession[Answer]):
    """One attempt's database.

    Its final state lists changed records, each with a digest of its content.
    """

    def __init__(
        self, pool: Pool[Subprocess], process: Subprocess, attempt: str, payload: Payload
    ) -> None:
        super().__init__(process, attempt, payload, "changes")
        self.leave = partial(pool.leave, process)

    async def close(self) -> Mapping[str, JSON]:
        try:
            return await super().close()
        finally:
            self.leave()

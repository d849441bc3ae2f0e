"""The environment `verifiers`: a taskset's tools, in subprocesses."""

from __future__ import annotations

import asyncio
from pathlib import Path

from harness import EnvironmentSession, RolloutError, TaskSetError
from harness_subprocess_environments import Payload, SubprocessEnvironment, SubprocessSession
from harness_verifiers.process import LOAD_S, Source, checked_python, shared_process
from harness_verifiers.tasks import DATA

START_S, OPEN_S = 25.0, 4.0
"""Seconds that an attempt waits for a subprocess that restarts, and for a session."""


class VerifiersEnvironment(SubprocessEnvironment):
    """The tools of the task's taskset, frozen when tasks were loaded; possibly none.

    The final state of an attempt is the taskset's state, which its tools share with its rewards.
    """

    data = DATA

    def check(self, payload: Payload) -> None:
        if payload["tools"]:
            try:
                checked_python(Path(payload["python"]))
            except TaskSetError as error:
                raise RolloutError(
                    f"{error}. A runner on another machine needs it at that path"
                ) from error

    async def ready(self, payload: Payload) -> None:
        if payload["tools"]:
            await (await asyncio.to_thread(shared_process, Source.of(payload))).ready(LOAD_S)

    async def open(self, payload: Payload, attempt: str) -> EnvironmentSession:
        if not payload["tools"]:
            return await super().open(payload, attempt)
        process = await asyncio.to_thread(shared_process, Source.of(payload))
        await process.ready(START_S)
        session = SubprocessSession(process, attempt, payload, "state")
        await session.open(OPEN_S, {"number": payload["number"], "hash": payload["hash"]})
        return session

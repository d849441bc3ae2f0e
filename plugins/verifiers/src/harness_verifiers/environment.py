"""The environment `verifiers`: a taskset's tools, carried out in side processes."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

from harness import Environment, EnvironmentFault, Observation, RolloutError, Task, TaskSetError, Tool, check_offered
from harness.records import JSON
from harness_verifiers.process import Process, Source, checked, kept
from harness_verifiers.tasks import DATA

START_S, OPEN_S, CLOSE_S = 25.0, 4.0, 9.0
"""How long an attempt waits until a side process has loaded, which the next attempt finds loaded; and for a session."""
Payload: TypeAlias = Mapping[str, Any]


class VerifiersEnvironment(Environment):
    """The tools of the task's taskset, as they were when tasks were loaded; it may have none."""

    def payload(self, task: Task, limits: Mapping[str, JSON]) -> Mapping[str, JSON]:
        return {**task.data[DATA], "limits": {name: limits[name] for name in ("timeout_s", "max_chars")}}

    def tools_for(self, payload: Payload) -> tuple[Tool, ...]:
        return tuple(Tool(**one) for one in payload["tools"])

    def check(self, payload: Payload) -> None:
        if payload["tools"]:
            try:
                checked(Path(payload["python"]))
            except TaskSetError as error:
                raise RolloutError(f"{error}. A runner on another machine needs it at that path") from error

    async def open(self, payload: Payload, attempt: str) -> VerifiersSession:
        session = VerifiersSession(attempt, payload)
        if payload["tools"]:
            await session.open(Source.of(payload))
        return session


class VerifiersSession:
    """One attempt's tools. It leaves the taskset's state behind, which its tools share with its rewards."""

    def __init__(self, attempt: str, payload: Payload) -> None:
        self._attempt = attempt
        self._limit_s: float = payload["limits"]["timeout_s"]
        self._max_chars: int = payload["limits"]["max_chars"]
        self._asked = {"session": attempt, "number": payload["number"], "hash": payload["hash"]}
        self._promised = [Tool(**one) for one in payload["tools"]]
        self._process: Process | None = None

    async def open(self, source: Source) -> None:
        """Get tools in a process that offers what the agent is told of.

        Raises:
            EnvironmentFault: There are none to be had.
        """
        try:
            process = await asyncio.to_thread(kept, source)
        except OSError as error:
            raise EnvironmentFault(f"{source.name} does not start: {error}") from error
        try:
            await process.ready(START_S)
            offered = await process.ask(OPEN_S, {"do": "open", **self._asked})
            check_offered(self._promised, [Tool(**one) for one in offered["tools"]])
        except BaseException:
            with contextlib.suppress(EnvironmentFault):
                process.asked({"do": "close", "session": self._attempt})  # by whoever is cancelled, too
            raise
        self._process = process

    async def call(self, tool: str, arguments: Mapping[str, JSON]) -> Observation:
        assert self._process is not None
        asked = {"do": "call", "session": self._attempt, "tool": tool, "arguments": dict(arguments)}
        said = await self._process.ask(self._limit_s, {**asked, "max_chars": self._max_chars})
        return Observation(said["text"], said["ok"])

    async def close(self) -> Mapping[str, JSON] | None:
        if self._process is None:
            return None
        left = await self._process.ask(CLOSE_S, {"do": "close", "session": self._attempt})
        return {"state": left["state"]}

"""Tools in subprocesses: the environment of their tasks, and the session of an attempt."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any, Generic, TypeVar

from harness import Environment, EnvironmentFault, Observation, Task, Tool, check_offered
from harness.records import JSON
from harness_subprocess_environments.process import Subprocess

Answer = TypeVar("Answer", bound=Mapping[str, Any])
Payload = Mapping[str, Any]
"""A task's data for its tools: `tools` with their definitions, and `limits` of one call."""
CLOSE_S = 9.0


class SubprocessEnvironment(Environment):
    """Tools frozen when tasks were loaded; a task's data has them under the key `data`."""

    data: str

    def payload(self, task: Task, limits: Mapping[str, JSON]) -> Mapping[str, JSON]:
        """Return the task's own data with the limits of one call."""
        return {
            **task.data[self.data],
            "limits": {name: limits[name] for name in ("timeout_s", "max_chars")},
        }

    def tools_for(self, payload: Payload) -> tuple[Tool, ...]:
        """Return the tools of the payload."""
        return tuple(Tool(**tool) for tool in payload["tools"])


class SubprocessSession(Generic[Answer]):
    """One attempt's tools. Its process answers `open`, `call` and `close` for the session's name.

    Args:
        state_key: Key of the final state in the last answer.
    """

    def __init__(
        self, process: Subprocess[Answer], attempt: str, payload: Payload, state_key: str
    ) -> None:
        self._process, self._attempt, self._state_key = process, attempt, state_key
        self._limit_s: float = payload["limits"]["timeout_s"]
        self._max_chars: int = payload["limits"]["max_chars"]
        self._promised = [Tool(**tool) for tool in payload["tools"]]

    async def open(self, limit_s: float, options: Mapping[str, object] | None = None) -> None:
        """Open the session, and check that it offers the tools of the payload.

        Raises:
            EnvironmentFault: It does not, or does not answer within the limit.
        """
        try:
            offered = await self._process.ask(
                limit_s, {"do": "open", "session": self._attempt, **(options or {})}
            )
            check_offered(self._promised, [Tool(**tool) for tool in offered["tools"]])
        except BaseException:
            with contextlib.suppress(EnvironmentFault):
                # Not awaited, so that it is sent even if the caller is cancelled.
                self._process.send({"do": "close", "session": self._attempt})
            raise

    async def call(self, tool: str, arguments: Mapping[str, JSON]) -> Observation:
        """Return the result of a tool call."""
        request = {
            "do": "call",
            "session": self._attempt,
            "tool": tool,
            "arguments": dict(arguments),
            "max_chars": self._max_chars,
        }
        answer = await self._process.ask(self._limit_s, request)
        return Observation(answer["text"], answer["ok"])

    async def close(self) -> Mapping[str, JSON]:
        """End the session and return its final state."""
        answer = await self._process.ask(CLOSE_S, {"do": "close", "session": self._attempt})
        return {self._state_key: answer[self._state_key]}

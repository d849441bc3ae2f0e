"""The contract of environments, which provide tools to agents.

They know no framework, prompt or gold.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from harness.errors import EnvironmentFault
from harness.records import JSON, Task


@dataclass(frozen=True, slots=True)
class Tool:
    """One tool as described to a model.

    Attributes:
        parameters: JSON schema of the arguments, which are an object.
    """

    name: str
    description: str
    parameters: Mapping[str, Any]

    @property
    def definition(self) -> dict[str, Any]:
        """Return the entry of `tools` in a request; the same bytes for every framework."""
        function = {
            "name": self.name,
            "description": self.description,
            "parameters": dict(self.parameters),
        }
        return {"type": "function", "function": function}


@dataclass(frozen=True, slots=True)
class Observation:
    """The result of a tool call: the text to show the model, and whether the tool succeeded."""

    text: str
    ok: bool = True


class EnvironmentSession(Protocol):
    """A session of one attempt. Its changes are invisible to other attempts."""

    async def call(self, tool: str, arguments: Mapping[str, JSON]) -> Observation:
        """Carry out one call with arguments that fit the tool's schema.

        An agent may have several calls in progress.

        Any other exception is shown to the model as the tool's failure and recorded as such.

        Raises:
            EnvironmentFault: The process behind the tool is gone or does not answer.
        """

    async def close(self) -> Mapping[str, JSON] | None:
        """Close the session and return its final state for the reward.

        Called once per attempt, whatever its end, even during a call.

        Raises:
            EnvironmentFault: The state is unknown, or the process behind the tools was gone.
        """


class Environment(ABC):
    """Tools for the tasks of a task set. Built once per process, without arguments.

    An environment without state implements `call`, one with state implements `open` instead.
    """

    tools: tuple[Tool, ...] = ()

    @abstractmethod
    def payload(self, task: Task, limits: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return what a runner needs for a task: plain JSON without gold.

        The runner may be on another machine.

        Args:
            limits: `timeout_s`, `max_rows`, `max_chars` of one call, as configured.
        """

    def tools_for(self, payload: Mapping[str, Any]) -> tuple[Tool, ...]:
        """Return the tools of one task, possibly none.

        They depend on its payload only; by default `tools`.
        """
        return self.tools

    def check(self, payload: Mapping[str, Any]) -> None:  # noqa: B027 (most need it, none must)
        """Check this machine, where the agent is about to run.

        Raises:
            RolloutError: This machine lacks what the payload names; the message states what to do.
        """

    async def ready(self, payload: Mapping[str, object]) -> None:  # noqa: B027
        """Wait for this process to load the data that its attempts share, for five minutes at most.

        Called after `check`, before the time of each attempt begins. If either raises, the attempt
        is unscored.
        """

    async def call(
        self, payload: Mapping[str, Any], tool: str, arguments: Mapping[str, Any]
    ) -> Observation:
        """Carry out a call as a session does, for an environment in which calls are independent."""
        raise NotImplementedError(f"{type(self).__name__} has neither `call` nor `open`")

    async def open(self, payload: Mapping[str, Any], attempt: str) -> EnvironmentSession:
        """Return the session of one attempt; by default one without state.

        Args:
            attempt: An id that no other attempt has.

        Raises:
            EnvironmentFault: No session is available: the attempt is retried, then left unscored.
        """
        return Stateless(self, payload)

    async def meaning(self, task: Task, answer: str) -> str | None:
        """Return the normalized answer, by which several answers to a task are grouped in a vote.

        None excludes an answer from the vote. Runs on the host.
        """
        return plain(answer)

    def gold_answer(self, task: Task) -> str | None:
        """Return the task's gold as the text of an answer, for supervised training.

        None, the default, if the gold is no such text. Runs on the host; agents never see it.
        """
        return None


@dataclass(frozen=True, slots=True)
class Stateless:
    """The session of an environment in which calls do not affect each other."""

    environment: Environment
    payload: Mapping[str, Any]

    async def call(self, tool: str, arguments: Mapping[str, JSON]) -> Observation:
        """Call the environment."""
        return await self.environment.call(self.payload, tool, arguments)

    async def close(self) -> None:
        """Do nothing."""


def plain(text: str) -> str:
    """Normalize a text: ignore case, repeated spaces and a final full stop."""
    return " ".join(text.casefold().split()).rstrip(".")


def check_offered(promised: Sequence[Tool], offered: Sequence[Tool]) -> None:
    """Refuse a session with a missing tool, or with a tool that differs from the task's payload.

    Raises:
        EnvironmentFault: The message names the tool.
    """
    there = {tool.name: tool for tool in offered}
    for tool in promised:
        if tool.name not in there:
            raise EnvironmentFault(
                f"tool {tool.name!r} is not offered any more. Load the tasks again"
            )
        if there[tool.name] != tool:
            raise EnvironmentFault(
                f"tool {tool.name!r} has changed since the tasks were loaded. Load them again"
            )

"""Environments: what an agent acts in. An environment knows no framework, no prompt and no gold."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from harness.errors import EnvironmentFault
from harness.records import JSON, Task


@dataclass(frozen=True, slots=True)
class Tool:
    """One tool as a model is told of it.

    Attributes:
        parameters: JSON schema of the arguments, an object's.
    """

    name: str
    description: str
    parameters: Mapping[str, Any]

    @property
    def definition(self) -> dict[str, Any]:
        """As a chat completion request has it in `tools`; the same bytes for every framework."""
        function = {
            "name": self.name,
            "description": self.description,
            "parameters": dict(self.parameters),
        }
        return {"type": "function", "function": function}


@dataclass(frozen=True, slots=True)
class Observation:
    """What a tool gave: the text to show the model, and whether it did what was asked."""

    text: str
    ok: bool = True


class EnvironmentSession(Protocol):
    """One attempt's time in an environment: what is changed here no other attempt sees."""

    async def call(self, tool: str, arguments: Mapping[str, JSON]) -> Observation:
        """Carry out one call, whose arguments fit the tool's schema; an agent may have several under way.

        Whatever else it raises is shown to the model as the tool's failure and recorded as such.

        Raises:
            EnvironmentFault: It is not the tool that says no: what carries it out is gone or does not answer.
        """

    async def close(self) -> Mapping[str, JSON] | None:
        """Called once, however the attempt ended, also amid a call. Returns the state left behind, for the reward.

        Raises:
            EnvironmentFault: Nobody knows that state, or what carried the tools out had gone.
        """


class Environment(ABC):
    """Tools over what a task is about. Built once a process, without arguments.

    One without state has `call`, one with state has `open` in its place.
    """

    tools: tuple[Tool, ...] = ()

    @abstractmethod
    def payload(self, task: Task, limits: Mapping[str, Any]) -> Mapping[str, Any]:
        """What a runner, maybe on another machine, needs to act on a task: plain JSON, and no gold.

        Args:
            limits: `timeout_s`, `max_rows`, `max_chars` of one call, as configured.
        """

    def tools_for(self, payload: Mapping[str, Any]) -> tuple[Tool, ...]:
        """The tools of one task, which follow from its payload alone; by default `tools`, and there may be none."""
        return self.tools

    def check(self, payload: Mapping[str, Any]) -> None:  # noqa: B027 (most need it, none must)
        """Runs where the agent runs, before it does.

        Raises:
            RolloutError: This machine lacks what the payload names; the message says what to do.
        """

    async def ready(self, payload: Mapping[str, object]) -> None:  # noqa: B027
        """Wait until this process has loaded what its attempts share, for five minutes at most.

        Called after `check`, before each attempt, whose time has not begun. What either raises leaves it unscored.
        """

    async def call(
        self, payload: Mapping[str, Any], tool: str, arguments: Mapping[str, Any]
    ) -> Observation:
        """As a session's `call`, for an environment in which no call changes what another one finds."""
        raise NotImplementedError(f"{type(self).__name__} has neither `call` nor `open`")

    async def open(self, payload: Mapping[str, Any], attempt: str) -> EnvironmentSession:
        """The session of one attempt; by default one that keeps no state.

        Args:
            attempt: An id that no other attempt has.

        Raises:
            EnvironmentFault: There is none to be had: the attempt is tried again, and then left unscored.
        """
        return Stateless(self, payload)

    async def meaning(self, task: Task, answer: str) -> str | None:
        """What an answer comes to, where several are drawn for a task: answers with the same meaning are one in a vote.

        None for an answer that is not to vote. Runs on the host.
        """
        return plain(answer)


@dataclass(frozen=True, slots=True)
class Stateless:
    """The session of an environment in which no call changes what another one finds."""

    environment: Environment
    payload: Mapping[str, Any]

    async def call(self, tool: str, arguments: Mapping[str, JSON]) -> Observation:
        """The environment's own."""
        return await self.environment.call(self.payload, tool, arguments)

    async def close(self) -> None:
        """There is nothing to close."""


def plain(text: str) -> str:
    """A text without what does not change it for a reader: case, spaces, a full stop at its end."""
    return " ".join(text.casefold().split()).rstrip(".")


def check_offered(promised: Sequence[Tool], offered: Sequence[Tool]) -> None:
    """Refuse a session in which a tool is missing, or another one than the task's payload says.

    Raises:
        EnvironmentFault: The message names the tool.
    """
    there = {tool.name: tool for tool in offered}
    for tool in promised:
        if tool.name not in there:
            raise EnvironmentFault(
                f"tool {tool.name!r} is not offered any more. Load the tasks anew"
            )
        if there[tool.name] != tool:
            raise EnvironmentFault(
                f"tool {tool.name!r} has changed since the tasks were loaded. Load them anew"
            )

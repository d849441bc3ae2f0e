"""Environments: what an agent acts in. An environment knows no framework, no prompt and no gold."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from harness.records import Task


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
        function = {"name": self.name, "description": self.description, "parameters": dict(self.parameters)}
        return {"type": "function", "function": function}


@dataclass(frozen=True, slots=True)
class Observation:
    """What a tool gave: the text to show the model, and whether it did what was asked."""

    text: str
    ok: bool = True


class Environment(Protocol):
    """Tools over what a task is about. Built once a process, without arguments.

    One whose tools are not the same for every task also has `tools_for(payload)`, which gives those of one.
    """

    tools: tuple[Tool, ...]

    def payload(self, task: Task, limits: Mapping[str, Any]) -> Mapping[str, Any]:
        """What a runner, maybe on another machine, needs to act on a task: plain JSON, and no gold.

        Args:
            limits: `timeout_s`, `max_rows`, `max_chars` of one call, as configured.
        """

    def check(self, payload: Mapping[str, Any]) -> None:
        """Runs where the agent runs, before it does.

        Raises:
            RolloutError: This machine lacks what the payload names; the message says what to do.
        """

    async def call(self, payload: Mapping[str, Any], tool: str, arguments: Mapping[str, Any]) -> Observation:
        """Carry out one call, whose arguments fit the tool's schema.

        Whatever it raises is shown to the model as the tool's failure and recorded as such.
        """

    async def meaning(self, task: Task, answer: str) -> str | None:
        """What an answer comes to, where several are drawn for a task: answers with the same meaning are one in a vote.

        None for an answer that is not to vote. Runs on the host; an environment without it has `plain` instead.
        """


def plain(text: str) -> str:
    """A text without what does not change it for a reader: case, spaces, a full stop at its end."""
    return " ".join(text.casefold().split()).rstrip(".")


def tools_of(environment: Environment, payload: Mapping[str, Any]) -> tuple[Tool, ...]:
    """The tools of one task."""
    found: tuple[Tool, ...] = environment.tools_for(payload) if hasattr(environment, "tools_for") else environment.tools
    return found

"""The contract of programs: agents' behaviour without any framework, and scenarios that test it."""

from __future__ import annotations

import hashlib
import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, Protocol

from harness.contracts.environments import Tool
from harness.records import Attempt, Problem, Task

if TYPE_CHECKING:
    from harness.mock_model.completion import Reply

PLAYS = ("alone", "together")
"""Modes of playing every scenario: one after the other, then all of them concurrently by the same
agent.
"""
CANARY = "GOLD-CANARY-7f3a"
"""Part of the gold of every scenario's task; no request may contain it."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """One scripted episode.

    Attributes:
        name: The name for `--scenario`.
        shows: What it tests, in a few words.
        replies: The model's replies, call by call.
        timeout_s: Deadline of the attempt.
        options: Further inputs of the program's `stage`.
    """

    name: str
    shows: str
    replies: tuple[Reply, ...]
    question: str
    max_turns: int = 3
    timeout_s: float = 60.0
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def hangs(self) -> bool:
        """Return whether only its deadline ends it."""
        return any(reply.hang for reply in self.replies)


@dataclass(frozen=True, slots=True)
class Turn:
    """The effect of one call on the answer.

    Attributes:
        answer: The answer that it wrote or kept; None if unknown.
        approved: A checker's verdict; None if the call does not check.
    """

    answer: str | None
    approved: bool | None = None


@dataclass(frozen=True, slots=True)
class TaughtCall:
    """A call with the reply that supervised training teaches.

    Attributes:
        role: The role that makes the call.
        messages: The request's messages.
        reply: The reply's text, with the gold answer in the form that the messages ask for.
    """

    role: str
    messages: Sequence[Mapping[str, Any]]
    reply: str


class Program(Protocol):
    """The common behaviour of agents of all frameworks; a base class.

    Built once per process, without arguments.

    Attributes:
        reference: The agent in plain Python that others are compared with.
        environment: The environment that it needs; empty if it uses the tools of any.
        calls_tools: Whether its requests offer tools, so that a policy's server must parse calls in
            replies.
        roles: Its LLM callers, in the order in which they first act.
        checkers: Roles with replies that are no answers.
        trains: Default pattern of the roles to train; optional, all but checkers.
        revisers: Roles with replies that replace an earlier answer.
        taught_role: The role of the call that `taught` returns; optional, empty without such calls.
        prompts: Its texts and reply parsers, available to agents as `toolbox.prompts`.
        prompts_hash: Changes with any text that it sends; must be identical in a comparison.
        scenarios: Episodes that every agent must complete exactly as the reference does.
        scenarios_hash: Changes with anything that decides what the scenarios test.
    """

    reference: str
    environment: str
    calls_tools: bool
    roles: tuple[str, ...]
    checkers: tuple[str, ...]
    revisers: tuple[str, ...]
    taught_role: str = ""
    prompts: Any
    prompts_hash: str

    @property
    def scenarios(self) -> tuple[Scenario, ...]: ...

    @property
    def scenarios_hash(self) -> str: ...

    def prompts_for(self, tools: Sequence[Tool]) -> Any:
        """Return its prompts for a task with these tools, possibly none; by default `prompts`."""
        return self.prompts

    def inputs(self, context: Mapping[str, str], answer_form: str) -> Mapping[str, str]:
        """Return the inputs of its prompts for one task.

        By default `context`. A program with prompts that leave the form of the answer open adds it.

        Args:
            context: The inputs that the task set provides.
            answer_form: The form of the answers that the run's reward can score, as a sentence;
                empty for any text.
        """
        return context

    def most_calls(self, max_turns: int) -> int:
        """Return an upper bound of the model calls in an attempt of so many turns."""
        return 2 * max_turns

    def read_answer(self, text: str) -> str:
        """Return the answer in the text that an agent returns; by default the whole text.

        The host applies it to every agent's text, so that all frameworks answer alike.
        """
        return text

    def turns(self, attempt: Attempt) -> Sequence[Turn]:
        """Return the turn of every call of the attempt, in order; empty if there are no drafts."""

    def taught(self, problem: Problem, answer: str) -> TaughtCall | None:
        """Return the reference agent's first call, with a reply that gives `answer`.

        None, the default, if no reply gives it. Runs where gold is known, apart from agents.

        Args:
            answer: A gold answer, as `Environment.gold_answer` returns it.
        """
        return None

    def stage(self, scenario: Scenario, folder: Path) -> tuple[Task, Problem]:
        """Return a scenario's task, with `CANARY` in its gold, and its problem.

        Write the files they need to `folder`.
        """

    def generate(self, random: Random, name: str) -> Scenario | None:
        """Return a random scenario, determined by the state of `random`, or None."""
        return None

    def script(self, scenario: Scenario) -> Callable[[Any], Reply]:
        """Return the scripted model's replies to one rollout's requests, in order.

        They fit strict and idiomatic agents.
        """


class Played(Program):
    """A program with scenarios in a module of its own, imported when they are played or counted.

    The module has `SCENARIOS`, `DATABASE`, `stage` and `Script`, and may have `generate`.
    """

    scenes: str
    """Name of the module."""

    @cached_property
    def _module(self) -> Any:
        return importlib.import_module(self.scenes)

    @property
    def scenarios(self) -> tuple[Scenario, ...]:
        found: tuple[Scenario, ...] = self._module.SCENARIOS
        return found

    @cached_property
    def scenarios_hash(self) -> str:
        played = repr((self._module.DATABASE, self.scenarios, PLAYS))
        return hashlib.sha256(played.encode()).hexdigest()[:16]

    def stage(self, scenario: Scenario, folder: Path) -> tuple[Task, Problem]:
        staged: tuple[Task, Problem] = self._module.stage(scenario, folder)
        return staged

    def generate(self, random: Random, name: str) -> Scenario | None:
        generate = getattr(self._module, "generate", None)
        generated: Scenario | None = generate(random, name) if generate is not None else None
        return generated

    def script(self, scenario: Scenario) -> Callable[[Any], Reply]:
        script: Callable[[Any], Reply] = self._module.Script(scenario)
        return script

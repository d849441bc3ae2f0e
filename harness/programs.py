"""Programs: what an agent does, without any framework, and the scripted episodes that prove another the same."""

from __future__ import annotations

import hashlib
import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, Protocol

from harness.environments import Tool
from harness.records import Attempt, Problem, Task

if TYPE_CHECKING:
    from harness.scripted.completion import Reply

PLAYS = ("alone", "together")
"""How every scenario is played: one after the other, then all of them at once by the same agent."""
CANARY = "GOLD-CANARY-7f3a"
"""Stands in the gold of every scenario's task; no request may contain it."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """One scripted episode.

    Attributes:
        name: What users write with `--scenario`.
        shows: What it is about, in a few words.
        replies: What the model says, call by call.
        timeout_s: Deadline of the attempt.
        options: What else the program's `stage` reads.
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
        """Whether only its deadline ends it."""
        return any(reply.hang for reply in self.replies)


@dataclass(frozen=True, slots=True)
class Turn:
    """What one call did for an answer.

    Attributes:
        answer: The one that it wrote, or goes with; None where that is not known.
        approved: What a checker said of it; None where the call does not check.
    """

    answer: str | None
    approved: bool | None = None


class Program(Protocol):
    """What agents of all frameworks do alike: a base class. Built once a process, without arguments.

    Attributes:
        reference: The agent in plain Python that others are compared with.
        environment: The environment that it needs; empty where it uses the tools of any.
        calls_tools: Whether its requests offer tools, so that a policy's server must read calls out of replies.
        roles: Its LLM callers, in the order in which they first act.
        checkers: Those of its roles whose replies are no answers.
        trains: Pattern of the roles that a training trains where nobody names one; may be missing: all but checkers.
        revisers: Those whose replies replace an earlier answer.
        prompts: Its texts and how replies are read: what agents find as `toolbox.prompts`.
        prompts_hash: Changes with any text that it sends; part of what must be identical.
        scenarios: What every agent must get through as the reference does.
        scenarios_hash: Changes with anything that decides what the scenarios test.
    """

    reference: str
    environment: str
    calls_tools: bool
    roles: tuple[str, ...]
    checkers: tuple[str, ...]
    revisers: tuple[str, ...]
    prompts: Any
    prompts_hash: str

    @property
    def scenarios(self) -> tuple[Scenario, ...]: ...

    @property
    def scenarios_hash(self) -> str: ...

    def prompts_for(self, tools: Sequence[Tool]) -> Any:
        """Its texts where a task offers these tools, maybe none; by default `prompts`."""
        return self.prompts

    def most_calls(self, max_turns: int) -> int:
        """How many calls of the model an attempt of so many turns makes at most, generously."""
        return 2 * max_turns

    def turns(self, attempt: Attempt) -> Sequence[Turn]:
        """The turn of every call of the attempt, in order; empty where the program has no drafts."""

    def stage(self, scenario: Scenario, folder: Path) -> tuple[Task, Problem]:
        """The task of a scenario, whose gold holds `CANARY`, and its problem; files that they need go to `folder`."""

    def generate(self, random: Random, name: str) -> Scenario | None:
        """Return a random scenario, the same for the same state of `random`; None without a generator."""
        return None

    def script(self, scenario: Scenario) -> Callable[[Any], Reply]:
        """What the scripted model answers to one rollout's requests, in order, strict agent or idiomatic."""


class Played(Program):
    """A program's scenarios from a module of its own, which is imported when they are played or counted.

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

"""The search: a pool of demonstrations, random sets of them, and successive halving of the sets."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from harness import Transition
from harness.records import Demonstrations
from harness.rollout.scored import Scored

Candidate = Mapping[str, Sequence[int]]
"""A set of demonstrations: for each role, places in the role's pool. Empty: none."""


@dataclass(frozen=True, slots=True)
class Demonstration:
    """One call that was part of a right rollout.

    Attributes:
        task: Id of the rollout's task.
        user: The user message of the request.
        reply: The policy's reply.
    """

    task: str
    user: Mapping[str, Any]
    reply: str

    def messages(self) -> list[Mapping[str, Any]]:
        """Return the pair of messages that the gateway inserts."""
        return [self.user, {"role": "assistant", "content": self.reply}]


Pool = dict[str, list[Demonstration]]
"""Demonstrations by role, in the order of the step's tasks."""


@dataclass(frozen=True, slots=True)
class Rollout:
    """The data of a scored rollout that the search needs.

    Attributes:
        reward: The reward that training uses; None if unscored.
        calls: Its calls of trained roles that agree with its answer (`Scored.agrees`).
        length: Number of all its calls of trained roles.
    """

    task: str
    session: int
    reward: float | None
    calls: Sequence[Transition]
    length: int

    @classmethod
    def of(cls, task: str, session: int, outcome: Scored) -> Rollout:
        """Return what the search needs of an outcome."""
        calls = []
        for call, agrees in zip(outcome.calls, outcome.agrees, strict=True):
            if agrees:
                calls.append(call)
        return cls(task, session, outcome.used, calls, len(outcome.calls))


def collect(rollouts: Sequence[Rollout], low: float) -> Pool:
    """Return the pool: of each task and role, one call of a rollout with the step's highest reward.

    Of several such rollouts of a task, one with fewer calls goes first, then the one with the lower
    session. Of several calls of a role, the last one counts. Left out are drafts that another
    answer replaced, checks that are not known to be right, replies without text or with tool calls,
    and calls within a conversation: their reply needs more than one user message to be understood.

    Args:
        low: The reward's lowest value: rollouts with no more are not right.
    """
    scored = [rollout for rollout in rollouts if rollout.reward is not None]
    highest = max((rollout.reward or 0.0 for rollout in scored), default=low)
    pool: Pool = {}
    if highest <= low:
        return pool
    by_task: dict[str, list[Rollout]] = {}
    for rollout in scored:
        if rollout.reward == highest:
            by_task.setdefault(rollout.task, []).append(rollout)
    for best in by_task.values():
        found: dict[str, Demonstration] = {}
        for rollout in sorted(best, key=lambda one: (one.length, one.session)):
            for role, demonstration in _of_rollout(rollout).items():
                found.setdefault(role, demonstration)
        for role, demonstration in found.items():
            pool.setdefault(role, []).append(demonstration)
    return pool


def _of_rollout(rollout: Rollout) -> dict[str, Demonstration]:
    """Return the last usable call of each role as a demonstration."""
    found: dict[str, Demonstration] = {}
    for call in rollout.calls:
        roles = [message.get("role") for message in call.messages]
        is_single = roles.count("user") == 1 and roles[-1] == "user"
        if is_single and call.response_text.strip() and not call.tool_calls:
            found[call.role] = Demonstration(rollout.task, call.messages[-1], call.response_text)
    return found


def draw(pool: Pool, candidates: int, shots: int, seed: int) -> list[Candidate]:
    """Return the candidates: first the one without demonstrations, then random sets.

    Sets that are drawn twice count once, so a small pool gives fewer candidates.

    Args:
        candidates: Number of random sets.
        shots: Demonstrations of each role in a set; all, if the pool has fewer.
        seed: The run's.
    """
    dice = random.Random(f"{seed}/demonstrations")
    drawn: list[Candidate] = [{}]
    for _ in range(candidates):
        chosen: dict[str, list[int]] = {}
        for role in sorted(pool):
            places = range(len(pool[role]))
            chosen[role] = dice.sample(places, min(shots, len(places)))
        if chosen not in drawn:
            drawn.append(chosen)
    return drawn


def last_steps(steps: int, candidates: int) -> list[int]:
    """Return the last step of each round, after which the candidates are halved.

    Rounds are as equally long as possible, the longer ones first. With fewer steps than rounds, the
    last rounds have no step of their own, and end together.

    Args:
        steps: All training steps; the first one belongs to no round.
        candidates: At the beginning.
    """
    rounds = math.ceil(math.log2(candidates))
    ends: list[int] = []
    step = 1
    for number in range(rounds):
        length, longer = divmod(steps - 1, rounds)
        step += length + (number < longer)
        ends.append(step)
    return ends


@dataclass
class Search:
    """The state of the search after a step.

    Attributes:
        survivors: Numbers of the candidates that still compete, in order.
        totals: Sum of the rewards of each candidate.
        counts: Number of its scored rollouts.
    """

    pool: Pool
    candidates: Sequence[Candidate]
    survivors: list[int]
    totals: list[float] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)

    @classmethod
    def begin(cls, pool: Pool, candidates: Sequence[Candidate]) -> Search:
        """Return the state before any candidate was tried."""
        number = len(candidates)
        return cls(pool, candidates, list(range(number)), [0.0] * number, [0] * number)

    def candidate_for(self, position: int, session: int, group_size: int) -> int:
        """Return the candidate that a rollout tries.

        Args:
            position: Of the task in its step.
            session: Number of the rollout within its task.
            group_size: Rollouts of a task.
        """
        return self.survivors[(position * group_size + session) % len(self.survivors)]

    def note(self, candidate: int, reward: float | None) -> None:
        """Count a rollout of a candidate; an unscored one is left out."""
        if reward is not None:
            self.totals[candidate] += reward
            self.counts[candidate] += 1

    def mean(self, candidate: int) -> float | None:
        """Return the mean reward of a candidate's scored rollouts, or None without any."""
        if not self.counts[candidate]:
            return None
        return self.totals[candidate] / self.counts[candidate]

    @property
    def leader(self) -> int:
        """Return the survivor with the highest mean; the lowest number among equals."""
        return self._ranked()[0]

    def halve(self) -> None:
        """Drop the half with the lowest means; of an odd number the larger half stays.

        Among equal means the lower number stays, so that demonstrations that show no gain lose
        against none. A candidate without a scored rollout is last.
        """
        staying = math.ceil(len(self.survivors) / 2)
        self.survivors = sorted(self._ranked()[:staying])

    def _ranked(self) -> list[int]:
        def rank(candidate: int) -> tuple[bool, float, int]:
            mean = self.mean(candidate)
            return mean is None, -(mean or 0.0), candidate

        return sorted(self.survivors, key=rank)

    def demonstrations(self, candidate: int, task: str = "") -> Demonstrations:
        """Return a candidate's demonstrations by role.

        Args:
            task: A task that is to be solved with them. Its own demonstrations, which have the
                answer, are left out.
        """
        by_role: dict[str, list[list[Mapping[str, Any]]]] = {}
        for role, places in self.candidates[candidate].items():
            shown = []
            for place in places:
                demonstration = self.pool[role][place]
                if demonstration.task != task:
                    shown.append(demonstration.messages())
            if shown:
                by_role[role] = shown
        return by_role

    def tasks(self, candidate: int) -> dict[str, list[str]]:
        """Return the id of the task of each of a candidate's demonstrations, by role."""
        by_role: dict[str, list[str]] = {}
        for role, places in self.candidates[candidate].items():
            by_role[role] = [self.pool[role][place].task for place in places]
        return by_role

    def dump(self) -> dict[str, Any]:
        """Return the state as plain data, for JSON."""
        pool: dict[str, list[dict[str, Any]]] = {}
        for role, demonstrations in self.pool.items():
            pool[role] = []
            for one in demonstrations:
                pool[role].append({"task": one.task, "user": dict(one.user), "reply": one.reply})
        return {
            "pool": pool,
            "candidates": [dict(candidate) for candidate in self.candidates],
            "survivors": self.survivors,
            "totals": self.totals,
            "counts": self.counts,
        }

    @classmethod
    def parse(cls, data: Mapping[str, Any]) -> Search:
        """Return the state from the plain data of `dump`."""
        pool: Pool = {}
        for role, demonstrations in data["pool"].items():
            pool[role] = [Demonstration(**one) for one in demonstrations]
        return cls(pool, data["candidates"], data["survivors"], data["totals"], data["counts"])

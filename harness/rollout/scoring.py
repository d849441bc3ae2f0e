"""Ask the reward for verdicts, with bounded concurrency and a deadline.

A reward's fault is no verdict.
"""

from __future__ import annotations

import asyncio
import math
import os
from collections.abc import Collection, Mapping
from dataclasses import replace
from numbers import Real
from pathlib import Path
from typing import Any

from harness.config import Config
from harness.contracts.hookspecs import RewardSpec
from harness.errors import RewardError
from harness.plugins import distribution_of, make_reward, reward_of, reward_version
from harness.records import AGENT_OUTCOMES, Attempt, Task, Verdict
from harness.util.deadlines import DeadlinePassed, Raised, within


class Scorer:
    """The configured reward of a run. One instance belongs to one event loop.

    Args:
        folder: Folder of the run for the reward's persistent data; all its processes share it.
        roles: Roles that a verdict may give a value; any if unknown.

    Raises:
        PluginError: The reward is not installed, does not import, declares no version or has no
            `async def score`.
        ConfigError: An option is unknown, missing or does not fit.
    """

    def __init__(
        self, config: Config, folder: Path | None = None, roles: Collection[str] | None = None
    ) -> None:
        self._spec = reward_of(config)
        self._reward = make_reward(config)
        # Rewards of other packages may be older than the method.
        keep_in = getattr(self._reward, "keep_in", None)
        if folder is not None and keep_in is not None:
            keep_in(folder)
        self._timeout_s = config.reward.timeout_s
        self._gate = asyncio.Semaphore(
            config.reward.concurrency or min(32, (os.cpu_count() or 1) + 4)
        )
        self._name = f"reward {self._spec.name} of {distribution_of('reward', self._spec.name)}"
        self._roles = roles
        self.version = reward_version(self._spec)

    def of_a_check(self, worth: float, approved: bool) -> float:
        """Return the value of a check: the approved answer's, or what a rejected one lacked."""
        return worth if approved else self._spec.low + self._spec.high - worth

    async def score(self, task: Task, attempt: Attempt) -> Verdict:
        """Return the reward's verdict: a number in its range, or no number and the reason.

        Raises:
            RewardError: The reward raised, passed its deadline, or returned something else.
        """
        async with self._gate:
            try:
                given = await within(self._timeout_s, lambda: self._reward.score(task, attempt))
                return self._of_its_roles(checked(given, self._spec))
            except DeadlinePassed:
                fault = f"gave no verdict within {self._timeout_s:g} s (reward.timeout_s)"
            except Raised as error:
                fault = f"raised {' '.join(str(error).split())[:500]}"
            except (TypeError, ValueError, OverflowError) as error:
                fault = f"returned {error}"
        raise RewardError(f"{self._name} {fault}".encode("utf-8", "backslashreplace").decode())

    def _of_its_roles(self, verdict: Verdict) -> Verdict:
        if self._roles is None:
            return verdict
        # A misspelt role would silently be paid the answer's value.
        for role in verdict.by_role:
            if role not in self._roles:
                raise ValueError(
                    f"a value of role {role!r}, but the agent has {', '.join(self._roles)}"
                )
        return verdict

    async def judge(self, task: Task, attempt: Attempt) -> tuple[Attempt, Verdict]:
        """Return the attempt and its verdict, whatever its outcome.

        A failure of the agent is wrong: it scores 0, or the lowest value if that is below 0. Other
        failures have no verdict. If the reward itself fails, the returned attempt has that outcome.
        """
        if attempt.outcome != "ok":
            value = min(0.0, self._spec.low) if attempt.outcome in AGENT_OUTCOMES else None
            return attempt, Verdict(value, f"{attempt.outcome}: {attempt.detail}")
        try:
            return attempt, await self.score(task, attempt)
        except RewardError as error:
            return replace(attempt, outcome="reward_error", detail=str(error)), Verdict(
                None, str(error)
            )


def checked(verdict: object, spec: RewardSpec) -> Verdict:
    """Return the verdict with plain numbers in the range that the spec declares.

    Raises:
        TypeError: A field has the wrong type.
        ValueError: A number is not finite or out of range, or a part is not declared.
    """
    if not isinstance(verdict, Verdict):
        raise TypeError(f"{type(verdict).__name__} {verdict!r:.100}, not a Verdict")
    flags = verdict.flags
    # One text would count as a flag for each of its letters.
    texts = (verdict.reason, *flags)
    if isinstance(flags, str) or not all(isinstance(text, str) for text in texts):
        raise TypeError(
            f"reason {verdict.reason!r:.100} and flags {flags!r:.100}, which are not a text and several"
        )
    if not isinstance(verdict.executed, bool | None):
        raise TypeError(f"executed {verdict.executed!r:.100}, which is not True, False or None")
    parts = {}
    for name, part in _named(verdict.parts, "parts"):
        parts[name] = _number(part, f"part {name!r}")
    undeclared = parts.keys() - set(spec.parts)
    if spec.parts and undeclared:
        raise ValueError(f"part {min(undeclared)!r}, but declares {', '.join(spec.parts)}")
    value = None if verdict.value is None else _number(verdict.value, "value", spec)
    by_role = {}
    for role, its_value in _named(verdict.by_role, "by_role"):
        by_role[role] = _number(its_value, f"value of role {role!r}", spec)
    return replace(verdict, value=value, parts=parts, by_role=by_role, flags=tuple(flags))


def _named(values: object, field: str) -> list[tuple[str, Any]]:
    if not isinstance(values, Mapping) or not all(isinstance(name, str) for name in values):
        raise TypeError(f"{field} {values!r:.100}, not a mapping from names to numbers")
    return list(values.items())


def _number(value: object, what: str, spec: RewardSpec | None = None) -> float:
    if not isinstance(value, Real) or isinstance(value, bool):
        raise TypeError(f"{what} {value!r:.100}, which is not a number")
    number = float(value)
    if not math.isfinite(number):
        raise ValueError(f"{what} {number}, which is not finite")
    if spec is not None and not spec.low <= number <= spec.high:
        then = (
            ". Set the range of the tasks' values: reward.range=[LOW, HIGH]" if spec.ranged else ""
        )
        raise ValueError(
            f"{what} {number:g}, outside of its range {spec.low:g} to {spec.high:g}{then}"
        )
    return number

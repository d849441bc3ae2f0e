"""The reward `hybrid`: the weighted sum of other rewards."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from harness.errors import ConfigError
from harness.plugins import answer_form, make, reward_identity, reward_spec, reward_version
from harness.records import Attempt, Task, Verdict
from harness.rollout.scoring import checked

DEFAULT = {"executes": 0.1, "judge": 1.0}
"""Default weights of the parts: a tenth for an executed query, plus the judge's value."""


class Hybrid:
    """The weighted sum of its parts' values, cut to the range from 0 to 1.

    Args:
        parts: By name: `reward` (by default the name), `weight`, `options`.
        judge: Options of the judge if no parts are given.
    """

    version = "hybrid/1"

    def __init__(
        self, *, parts: dict[str, dict[str, Any]] | None = None, judge: dict[str, Any] | None = None
    ) -> None:
        self._parts = []
        for name, part in _resolved(parts, judge).items():
            spec = replace(
                reward_spec(part["reward"]), ranged=False
            )  # `reward.range` would be the sum's
            reward_version(spec)
            made = make(spec, part["options"], f"reward.options.parts.{name}.options")
            self._parts.append((name, part["weight"], spec, made))

    @classmethod
    def identity(cls, options: Mapping[str, Any]) -> dict[str, Any]:
        """Return every part's reward version, weight and identity."""
        found = {}
        for name, part in _resolved(**options).items():
            spec = reward_spec(part["reward"])
            decides = reward_identity(spec, part["options"], f"reward.options.parts.{name}.options")
            found[name] = {
                "reward": reward_version(spec),
                "weight": part["weight"],
                "options": decides,
            }
        return {"parts": found}

    @classmethod
    def answer_form(cls, options: Mapping[str, Any]) -> str:
        """Return the form that one of the parts needs; others score any text."""
        for part in _resolved(**options).values():
            if form := answer_form(part["reward"], part["options"]):
                return form
        return ""

    def keep_in(self, folder: Path) -> None:
        """Give every part that stores data its own folder."""
        for name, _, _, reward in self._parts:
            if hasattr(reward, "keep_in"):
                reward.keep_in(folder / name)

    def refuses(self, task: Task) -> str:
        """Return the reason of the first part that cannot judge the task."""
        for name, _, _, reward in self._parts:
            if hasattr(reward, "refuses") and (why := reward.refuses(task)):
                return f"{name}: {why}"
        return ""

    async def score(self, task: Task, attempt: Attempt) -> Verdict:
        """Return the weighted sum. Stop at the first unscored part and return unscored."""
        parts: dict[str, float] = {}
        reasons: list[str] = []
        flags: dict[str, None] = {}
        executed: list[bool] = []
        for name, weight, spec, reward in self._parts:
            try:
                verdict = checked(await reward.score(task, attempt), spec)
            except (TypeError, ValueError, OverflowError) as error:
                raise ValueError(f"part {name} ({spec.name}): {error}") from error
            if verdict.value is None:
                return Verdict(None, f"{name}: {verdict.reason}", flags=verdict.flags)
            parts[name] = weight * verdict.value
            for part, value in verdict.parts.items():
                parts[f"{name}.{part}"] = value
            reasons.append(f"{name}: {verdict.reason}")
            flags |= dict.fromkeys(verdict.flags)
            if verdict.executed is not None:
                executed.append(verdict.executed)
        total = math.fsum(parts[name] for name, *_ in self._parts)
        return Verdict(
            min(max(total, 0.0), 1.0),
            "; ".join(reasons),
            parts,
            tuple(flags),
            # The answer fails if it fails for one part, although another part executed a call.
            executed=all(executed) if executed else None,
        )


def _resolved(
    parts: Mapping[str, Mapping[str, object]] | None = None,
    judge: Mapping[str, object] | None = None,
) -> dict[str, dict[str, Any]]:
    """Return every part with its reward, weight and options.

    Raises:
        ConfigError: A part is invalid.
    """
    if parts is None:
        own = {"judge": judge or {}}
        parts = {
            name: {"weight": weight, "options": own.get(name, {})}
            for name, weight in DEFAULT.items()
        }
    elif judge is not None:
        raise ConfigError(
            "reward.options: hybrid takes parts or judge, not both. "
            "Put the judge's options into its part"
        )
    elif not parts:
        raise ConfigError(
            "reward.options.parts: hybrid needs one part at least. "
            "Leave parts out for executes and judge"
        )
    resolved = {}
    for name, part in parts.items():
        where = f"reward.options.parts.{name}"
        unknown = part.keys() - {"reward", "weight", "options"}
        if unknown or not name.isidentifier():
            raise ConfigError(
                f"{where}: {min(unknown, default=name)!r} is not known. "
                "A part is NAME: {reward, weight, options}"
            )
        weight, options = part.get("weight", 1.0), part.get("options") or {}
        if (
            isinstance(weight, bool)
            or not isinstance(weight, int | float)
            or not 0 < weight < math.inf
        ):
            raise ConfigError(f"{where}.weight is {weight!r}. Give a number above 0")
        if not isinstance(options, Mapping):
            raise ConfigError(f"{where}.options is {options!r}. Give options by name")
        resolved[name] = {
            "reward": str(part.get("reward", name)),
            "weight": float(weight),
            "options": dict(options),
        }
    return resolved

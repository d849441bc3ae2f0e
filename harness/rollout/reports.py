"""Read an agent's report on its attempt, without running the agent's code."""

from __future__ import annotations

import math
from typing import Any

from harness.contracts.toolbox import Report
from harness.rollout.json_values import storable


def read_report(given: object) -> tuple[Report, str]:
    """Return a report as plain data, and a problem; empty if there is none.

    Values with a problem are left out.
    """
    # The type is compared, because `isinstance` asks the object, and a subclass may run code.
    if type(given) is not Report:
        return Report(), _wrong("report", given, "set its attributes reward and roles instead")
    reward, wrong_reward = _reward(getattr(given, "reward", None))
    roles, wrong_roles = _roles(getattr(given, "roles", None))
    return Report(reward, roles), wrong_reward or wrong_roles


def _reward(given: object) -> tuple[float | None, str]:
    if given is None:
        return None, ""
    advice = "set a finite number, such as float(value), or None"
    number: Any = given
    if issubclass(type(given), float):
        plain: float = float.__float__(number)
    elif issubclass(type(given), int):
        plain = number if type(given) is bool else int.__int__(number)
    else:
        return None, _wrong("report.reward", given, advice)
    try:
        finite = math.isfinite(plain)
    except OverflowError:  # an integer beyond every float
        finite = False
    if not finite:
        return None, f"toolbox.report.reward is not finite: {advice}"
    return plain, ""


def _roles(given: object) -> tuple[dict[str, str], str]:
    advice = "set a dict from ids of replies to names of roles"
    known: Any = given
    if not issubclass(type(known), dict):
        return {}, _wrong("report.roles", given, advice)
    roles: dict[str, str] = {}
    # A copy, because a task that the agent left behind may still change the original.
    for identifier, role in dict.items(dict.copy(known)):
        if not issubclass(type(role), str):
            return {}, _wrong("report.roles", role, advice, "has a value that ")
        if issubclass(type(identifier), str):
            roles[storable(identifier)] = storable(role)
    return roles, ""


def _wrong(what: str, value: object, advice: str, which: str = "") -> str:
    kind = storable(str(type(value).__name__))
    return f"toolbox.{what} {which}is of type {kind}: {advice}"

"""Findings of `harness doctor`, one line per check."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

State = Literal["ok", "note", "problem"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report."""

    check: str
    state: State
    found: str
    advice: str = ""


def held(check: str, fine: bool, found: str, advice: str, otherwise: State = "problem") -> Finding:
    """Return an `ok` finding if `fine`, otherwise one with another state and advice."""
    return Finding(check, "ok" if fine else otherwise, found, "" if fine else advice)

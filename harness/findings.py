"""What `harness doctor` says: a line about one thing each."""

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
    """A finding that is ok, or has a state of another kind and says what to do."""
    return Finding(check, "ok" if fine else otherwise, found, "" if fine else advice)

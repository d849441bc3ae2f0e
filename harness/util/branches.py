"""Concurrent members of a team within one attempt: their names, and an order independent of speed.

A branch is named by numbers, `2` or `2.1`: the second branch, and the first branch that it began
itself. It appears in a role's URL as `ROLE~BRANCH`; the calls of each branch have their own seeds.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from itertools import groupby
from typing import Protocol, TypeVar

_NAME = re.compile(r"[1-9]\d{0,5}(\.[1-9]\d{0,5}){0,7}")


class Branched(Protocol):
    """A record that names its branch; empty outside of any branch."""

    @property
    def branch(self) -> str:
        """The branch's name."""


class Numbered(Branched, Protocol):
    """A record with a position in its attempt."""

    @property
    def index(self) -> int:
        """The position."""


Record = TypeVar("Record", bound=Branched)
NumberedRecord = TypeVar("NumberedRecord", bound=Numbered)


def caller(role: str, branch: str) -> str:
    """Return the part of a URL that names the caller."""
    return f"{role}~{branch}" if branch else role


def parted(caller: str) -> tuple[str, str]:
    """Split a caller into role and branch.

    Without a valid branch after the last `~`, all of it is the role.
    """
    role, mark, branch = caller.rpartition("~")
    return (role, branch) if mark and _NAME.fullmatch(branch) else (caller, "")


def in_order(records: Iterable[Record]) -> list[Record]:
    """Return records in order of time.

    Neighbouring records of branches are ordered by branch, whichever was faster.
    """
    found: list[Record] = []
    for _, group in groupby(records, key=lambda one: bool(one.branch)):
        found += sorted(group, key=lambda one: _numbers(one.branch))
    return found


def renumbered(records: Iterable[NumberedRecord]) -> list[NumberedRecord]:
    """Return records in order and renumber them with the positions that they already had."""
    arrived = sorted(records, key=lambda record: record.index)
    numbered = []
    for record, before in zip(in_order(arrived), arrived, strict=True):
        if record.index != before.index:
            record = replace(record, index=before.index)  # type: ignore[type-var]
        numbered.append(record)
    return numbered


def _numbers(branch: str) -> tuple[int, ...]:
    return tuple(map(int, branch.split("."))) if branch else ()

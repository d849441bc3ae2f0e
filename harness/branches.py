"""Members of a team that work at once within one attempt: their names, and an order that nobody's speed decides.

A branch is named by numbers, `2` or `2.1`: the second that was begun, and the first that it began itself. It stands in
a role's URL as `ROLE~BRANCH`; the calls of each branch are seeded by themselves.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from itertools import groupby
from typing import Protocol, TypeVar

_NAME = re.compile(r"[1-9]\d{0,5}(\.[1-9]\d{0,5}){0,7}")


class Branched(Protocol):
    """A record that says of which branch it is; empty where it is of none."""

    @property
    def branch(self) -> str:
        """Its name."""


class Numbered(Branched, Protocol):
    """One with a place in its attempt."""

    @property
    def index(self) -> int:
        """Its place."""


Record = TypeVar("Record", bound=Branched)
NumberedRecord = TypeVar("NumberedRecord", bound=Numbered)


def caller(role: str, branch: str) -> str:
    """The part of a URL that names who calls."""
    return f"{role}~{branch}" if branch else role


def parted(caller: str) -> tuple[str, str]:
    """Role and branch of a caller; all of it is the role where what follows the last `~` names no branch."""
    role, mark, branch = caller.rpartition("~")
    return (role, branch) if mark and _NAME.fullmatch(branch) else (caller, "")


def in_order(records: Iterable[Record]) -> list[Record]:
    """Records in order of time, but those that branches left one after another by branch, whoever was faster."""
    found: list[Record] = []
    for _, group in groupby(records, key=lambda one: bool(one.branch)):
        found += sorted(group, key=lambda one: _numbers(one.branch))
    return found


def renumbered(records: Iterable[NumberedRecord]) -> list[NumberedRecord]:
    """Records in order, so numbered: they share out the places that they had among themselves."""
    arrived = sorted(records, key=lambda one: one.index)
    return [
        one if one.index == before.index else replace(one, index=before.index)  # type: ignore[type-var]
        for one, before in zip(in_order(arrived), arrived, strict=True)
    ]


def _numbers(branch: str) -> tuple[int, ...]:
    return tuple(map(int, branch.split("."))) if branch else ()

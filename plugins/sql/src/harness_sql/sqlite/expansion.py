"""Estimate how large a query becomes when SQLite expands its named parts.

If each part uses the previous one twice, the size doubles with every name: a query of a few lines
takes gigabytes and seconds in SQLite's compiler, before its first step and without any check of the
deadline. The size is therefore estimated from the text before execution. Standard library only.
"""

from __future__ import annotations

from itertools import pairwise
from math import log

from harness_sql.sqlite.lexer import tokenize

MAX_COPIES = 10_000
"""Maximum number of SELECTs after expansion: 0.1 s of compiling."""
MAX_TERMS = 100_000
"""Maximum columns after expanding one result column of expressions: 0.2 s of compiling."""
_LEVEL_CHARS = 15
"""Minimum length of a named part, without the names it uses."""
_MAX_NESTING = 200
_NO_COLUMNS = frozenset(
    "all and as asc between by case cast collate desc distinct else end escape exists false filter "
    "from glob in is isnull like match not notnull null or order over partition regexp rows then "
    "true union when".split()
)

_Group = list["str | _Group"]


def expands_too_far(sql: str) -> bool:
    """Return whether a query must be refused because its named parts expand too far."""
    selects = sql.lower().count("select")
    room = max(len(sql) / selects - _LEVEL_CHARS, 0) / 2 if selects else 0
    if room <= 1 or selects * log(room) < log(MAX_COPIES):
        return False  # too short: every further copy takes two characters
    try:
        return _Parts(_grouped(sql)).too_many()
    except RecursionError:
        return True


def _grouped(sql: str) -> _Group:
    """Return words, names and marks in lower case, with a nested list per pair of parentheses."""
    top: _Group = []
    path = [top]
    for token in tokenize(sql):
        if token.kind in ("space", "comment", "number"):
            continue
        if token.text == "(":
            inner: _Group = []
            path[-1].append(inner)
            path.append(inner)
            if len(path) > _MAX_NESTING:
                raise RecursionError
        elif token.text == ")":
            if len(path) > 1:
                path.pop()
        elif token.kind in (
            "name",
            "string",
        ):  # SQLite takes a string for a name where it needs one
            path[-1].append("'" + token.text.strip("\"'`[]").lower())
        else:
            path[-1].append(token.text.lower())
    return top


class _Parts:
    """The named parts of a query and their expanded sizes.

    Counts are upper bounds: every column of an expression counts as the largest expression below
    it,
    and a name refers to every part of that name, wherever it is defined.
    """

    def __init__(self, query: _Group) -> None:
        self.query = query
        self.named: dict[str, list[_Group]] = {}
        self.bodies: set[int] = set()
        self.definitions: set[tuple[int, int]] = set()
        self.known: dict[tuple[str, int], int] = {}
        self._find(query)

    def too_many(self) -> bool:
        return self._copies(self.query) > MAX_COPIES or self._terms(self.query) > MAX_TERMS

    def _find(self, group: _Group) -> None:
        """Record each `name [(columns)] AS [[NOT] MATERIALIZED] (SELECT ...)`."""
        for place, item in enumerate(group):
            if isinstance(item, str):
                continue
            self._find(item)
            before = place - 1
            while before >= 0 and group[before] in ("materialized", "not"):
                before -= 1
            if before < 1 or group[before] != "as":
                continue
            at = before - 1 if isinstance(group[before - 1], str) else max(before - 2, 0)
            name = group[at]
            if isinstance(name, str) and "select" in item:
                self.named.setdefault(name.removeprefix("'"), []).append(item)
                self.bodies.add(id(item))
                self.definitions.add((id(group), at))

    def _uses(self, group: _Group) -> list[_Group]:
        """Return the parts of a group: those in parentheses, and named parts once for each use."""
        parts: list[_Group] = []
        for place, item in enumerate(group):
            if not isinstance(item, str):
                # The body of a named part counts where its name is used, not where it is defined.
                if id(item) not in self.bodies:
                    parts.append(item)
            elif item.removeprefix("'") in self.named:
                before = group[place - 1] if place else ""
                after = group[place + 1] if place + 1 < len(group) else ""
                if (
                    after != "."
                    and before not in (".", "as")
                    and (id(group), place) not in self.definitions
                ):
                    parts += self.named[item.removeprefix("'")]
        return parts

    def _copies(self, group: _Group) -> int:
        key = ("copies", id(group))
        if key not in self.known:
            # Of a part that is being counted: recursion is not expanded.
            self.known[key] = 0
            below = sum(self._copies(part) for part in self._uses(group))
            self.known[key] = group.count("select") + below
        return self.known[key]

    def _terms(self, group: _Group) -> int:
        key = ("terms", id(group))
        if key not in self.known:
            self.known[key] = 1
            below = max((self._terms(part) for part in self._uses(group)), default=1)
            self.known[key] = max(1, _widest(group)) * below
        return self.known[key]


def _widest(group: _Group) -> int:
    """Return the largest number of columns in one result column of a SELECT."""
    widest = count = 0
    inside = False
    for place, item in enumerate(group):
        if item == "select":
            inside, count = True, 0
        elif inside and item in (",", "from", "union", "intersect", "except", "where"):
            inside, count = item == ",", 0
        elif inside and not (place and group[place - 1] == "as"):
            count += _columns(item, group[place + 1] if place + 1 < len(group) else "")
        widest = max(widest, count)
    return widest


def _columns(item: str | _Group, after: str | _Group) -> int:
    if isinstance(item, list):
        return sum(_columns(one, next_one) for one, next_one in pairwise([*item, ""]))
    is_word = item[0] not in "'" and (item[0].isalpha() or item[0] == "_")
    if not (is_word or item.startswith("'")) or item in _NO_COLUMNS:
        return 0
    return 0 if isinstance(after, list) or after == "." else 1

"""A domain filled with rows and open in memory: what questions are written about and checked against."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from random import Random

from recipes.pocket.domain import (
    Column,
    Domain,
    Rows,
    Stored,
    Table,
    Value,
    fill,
    insert_statements,
)


@dataclass(frozen=True, slots=True)
class Item:
    """One question with its gold and the plausible mistakes that it must tell apart.

    Attributes:
        kind: The template's name.
        difficulty: `easy`, `medium`, `hard` or `extra`, by Spider's meaning of the words.
        mistakes: Wrong queries by the name of the slip that leads to them.
    """

    kind: str
    difficulty: str
    question: str
    gold: str
    mistakes: Mapping[str, str] = field(default_factory=dict)


class World:
    """A database in memory with the design that it came from.

    Args:
        rows: What questions are about.
        stored: The rows of the database, where they are not these.
    """

    def __init__(self, domain: Domain, rows: Rows, stored: Stored | None = None) -> None:
        self.domain = domain
        self.rows = rows
        self.connection = sqlite3.connect(":memory:")
        self.script = (
            ";\n".join((*domain.ddl(), *insert_statements(domain, stored or rows))) + ";\n"
        )
        self.connection.executescript(self.script)

    def close(self) -> None:
        self.connection.close()

    def values(self, table: Table, column: Column) -> list[Value]:
        """The column's values, row by row."""
        position = table.columns.index(column)
        return [row[position] for row in self.rows[table.name]]

    def links(self) -> list[tuple[Table, Column, Table]]:
        """Every (child, foreign key, parent)."""
        return [(t, c, self.domain.table(c.ref)) for t in self.domain.tables for c in t.parents]

    def fetch(self, sql: str) -> list[tuple[Value, ...]]:
        """All rows of a query.

        Raises:
            sqlite3.Error: The query does not run.
        """
        return self.connection.execute(sql).fetchall()

    def sound(self, item: Item) -> bool:
        """Whether the gold runs, finds something, orders without ties, and differs from every mistake."""
        gold = self.fetch(item.gold)
        if not gold or (len(gold) == 1 and gold[0] in ((None,), (0,))):
            return False
        if "ORDER BY" in item.gold and not self._strictly_ordered(item.gold):
            return False
        return all(not same_rows(self.fetch(m), gold, ordered="ORDER BY" in item.gold)
                   for m in item.mistakes.values())  # fmt: skip

    def _strictly_ordered(self, gold: str) -> bool:
        """Whether no two rows that compete for a place share the value that orders them."""
        head, _, tail = gold.rpartition(" ORDER BY ")
        order, _, limit = tail.partition(" LIMIT ")
        key = order.removesuffix(" DESC")
        body = head[head.index(" FROM ") :]
        keys = [row[0] for row in self.fetch(f"SELECT {key}{body} ORDER BY {order}")]
        places = int(limit) + 1 if limit else len(keys)
        return len(set(keys[:places])) == len(keys[:places])


def same_rows(
    got: Iterable[tuple[Value, ...]], gold: Iterable[tuple[Value, ...]], ordered: bool
) -> bool:
    """Whether two results hold the same rows; columns may be permuted, order counts if `ordered`."""
    got, gold = list(got), list(gold)
    if len(got) != len(gold):
        return False
    if not gold:
        return True
    if len(got[0]) != len(gold[0]):
        return False
    if len(gold[0]) > 1:
        got, gold = [_sorted_row(r) for r in got], [_sorted_row(r) for r in gold]
    if ordered:
        return got == gold
    return sorted(got, key=repr) == sorted(gold, key=repr)


def _sorted_row(row: tuple[Value, ...]) -> tuple[Value, ...]:
    return tuple(sorted(row, key=repr))


def build_world(domain: Domain, rng: Random) -> World:
    """A world with freshly drawn rows."""
    return World(domain, fill(domain, rng))

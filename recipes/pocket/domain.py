"""Small relational domains: what a table holds, how it is declared, and rows to fill it.

Shared by the bundled databases and by the random databases that the seed policy is pre-trained on.
Standard library only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Literal

Kind = Literal["pk", "fk", "label", "cat", "int", "real", "year"]
Value = int | float | str
Pools = dict[str, tuple[str, ...]]

SQL_TYPES = {"label": "TEXT", "cat": "TEXT", "real": "REAL"}


@dataclass(frozen=True, slots=True)
class Column:
    """One column.

    Attributes:
        pool: Values of a `cat` column, or the parts that a `label` is drawn or composed from.
        low: Smallest value of a number.
        high: Largest value of a number.
        ref: The table that a `fk` points to.
        declared: Its SQL type, where that is not the one of its kind.
    """

    name: str
    kind: Kind
    pool: tuple[str, ...] = ()
    low: float = 0
    high: float = 0
    ref: str = ""
    declared: str = ""

    @property
    def phrase(self) -> str:
        """The column in words."""
        return self.name.replace("_", " ")

    @property
    def sql_type(self) -> str:
        return self.declared or SQL_TYPES.get(self.kind, "INTEGER")


@dataclass(frozen=True, slots=True)
class Table:
    """One table; its first column is the primary key."""

    name: str
    columns: tuple[Column, ...]

    @property
    def pk(self) -> Column:
        return self.columns[0]

    @property
    def label(self) -> Column:
        return next(c for c in self.columns if c.kind == "label")

    @property
    def parents(self) -> tuple[Column, ...]:
        return self.of("fk")

    def of(self, *kinds: str) -> tuple[Column, ...]:
        """The columns of these kinds, in order."""
        return tuple(c for c in self.columns if c.kind in kinds)

    @property
    def singular(self) -> str:
        return self.name.replace("_", " ")

    @property
    def plural(self) -> str:
        return pluralize(self.singular)


@dataclass(frozen=True, slots=True)
class Domain:
    """A database's design: parents come before the tables that refer to them."""

    db_id: str
    tables: tuple[Table, ...]

    def table(self, name: str) -> Table:
        return next(t for t in self.tables if t.name == name)

    def schema_text(self) -> str:
        """The compact schema text, one line a table, as `environments.sql.schema` writes it of the built database."""
        lines = []
        for table in self.tables:
            columns = []
            for column in table.columns:
                key = " pk" if column.kind == "pk" else ""
                target = f" -> {column.ref}.{self.table(column.ref).pk.name}" if column.ref else ""
                columns.append(f"{column.name} {column.sql_type.lower()}{key}{target}")
            lines.append(f"{table.name}({', '.join(columns)})")
        return "\n".join(lines)

    def ddl(self) -> list[str]:
        """One CREATE TABLE statement a table."""
        statements = []
        for table in self.tables:
            lines = []
            for column in table.columns:
                key = " PRIMARY KEY" if column.kind == "pk" else ""
                lines.append(f"  {column.name} {column.sql_type}{key}")
            for column in table.parents:
                target = self.table(column.ref)
                lines.append(
                    f"  FOREIGN KEY ({column.name}) REFERENCES {target.name}({target.pk.name})"
                )
            statements.append(f"CREATE TABLE {table.name} (\n" + ",\n".join(lines) + "\n)")
        return statements


Rows = dict[str, list[tuple[Value, ...]]]
Stored = Mapping[str, Sequence[tuple[Value | None, ...]]]
"""Rows as a database has them, with NULLs."""


def pluralize(phrase: str) -> str:
    """The regular English plural of a phrase's last word."""
    if phrase.endswith(("s", "x", "z", "ch", "sh")):
        return phrase + "es"
    if phrase.endswith("y") and phrase[-2:-1] not in "aeiou":
        return phrase[:-1] + "ies"
    return phrase + "s"


def fill(domain: Domain, rng: Random) -> Rows:
    """Rows for every table; one or two rows of each parent stay without children."""
    rows: Rows = {}
    for table in domain.tables:
        count = rng.randint(14, 20) if table.parents else rng.randint(7, 9)
        columns = [_column_values(column, count, rows, rng) for column in table.columns]
        rows[table.name] = list(zip(*columns, strict=True))
    return rows


def _column_values(column: Column, count: int, rows: Rows, rng: Random) -> list[Value]:
    if column.kind == "pk":
        return list(range(1, count + 1))
    if column.kind == "fk":
        used = [row[0] for row in rows[column.ref]]
        rng.shuffle(used)
        used = used[: max(3, min(len(used) - rng.randint(1, 2), 8))]
        weights = [1 + 2 * i for i in range(len(used))]
        return rng.choices(used, weights, k=count)
    if column.kind == "label":
        return list(_labels(column.pool, count, rng))
    if column.kind == "cat":
        pool = list(column.pool)
        rng.shuffle(pool)
        return list(rng.choices(pool, [2 + i for i in range(len(pool))], k=count))
    return _numbers(column, count, rng)


def _labels(pool: tuple[str, ...], count: int, rng: Random) -> list[str]:
    """Unique labels: the pool itself, or with a `|` in the pool first halves and second halves joined."""
    if "|" in pool:
        cut = pool.index("|")
        firsts, seconds = rng.sample(pool[:cut], count), pool[cut + 1 :]
        return [f"{first} {rng.choice(seconds)}" for first in firsts]
    return rng.sample(pool, count)


def _numbers(column: Column, count: int, rng: Random) -> list[Value]:
    low, high = int(column.low), int(column.high)
    if column.kind == "real":
        return [n / 10 for n in rng.sample(range(low * 10, high * 10 + 1), count)]
    if high - low >= 2 * count:
        step = 10 if high - low >= 200 * count else 1
        return list(rng.sample(range(low, high + 1, step), count))
    return [rng.randint(low, high) for _ in range(count)]


def insert_statements(domain: Domain, rows: Stored) -> list[str]:
    """One INSERT statement a table."""
    statements = []
    for table in domain.tables:
        lines = ",\n".join(
            "  (" + ", ".join(literal(v) for v in row) + ")" for row in rows[table.name]
        )
        statements.append(f"INSERT INTO {table.name} VALUES\n{lines}")
    return statements


def literal(value: Value | None) -> str:
    """A value as SQL."""
    if value is None:
        return "NULL"
    return "'" + value.replace("'", "''") + "'" if isinstance(value, str) else str(value)


def parse_domains(text: str, pools: Pools) -> list[tuple[str, Domain]]:
    """Read `domains.txt`: `@split db_id`, then one line a table.

    A table's line is `name -> parent, parent: column=kind arguments; ...`; the primary key and the
    foreign keys are added. Kinds: `label POOL`, `cat POOL`, `cat A,B,C`, `int LOW HIGH`, `real LOW
    HIGH`, `year LOW HIGH`. `@split db_id id` names every primary key `id`.

    Returns:
        (split, domain), in the order of the file.
    """
    found: list[tuple[str, str, bool, list[Table]]] = []
    for line in text.splitlines():
        line = line.split("#")[0].strip()
        if not line:
            continue
        if line.startswith("@"):
            split, db_id, *rest = line[1:].split()
            found.append((split, db_id, rest == ["id"], []))
            continue
        _, _, plain, tables = found[-1]
        tables.append(_parse_table(line, plain, tables, pools))
    return [(split, Domain(db_id, tuple(tables))) for split, db_id, _, tables in found]


def _parse_table(line: str, plain: bool, known: list[Table], pools: Pools) -> Table:
    head, _, body = line.partition(":")
    name, _, parents = head.partition("->")
    name = name.strip()
    columns = [Column("id" if plain else f"{name}_id", "pk")]
    for part in body.split(";"):
        column, _, definition = part.strip().partition("=")
        kind, _, arguments = definition.partition(" ")
        if kind in ("label", "cat"):
            pool = pools[arguments] if arguments in pools else tuple(arguments.split(","))
            columns.append(Column(column, "label" if kind == "label" else "cat", pool))
        elif kind in ("int", "real", "year"):
            low, high = arguments.split()
            columns.append(Column(column, kind, low=float(low), high=float(high)))  # type: ignore[arg-type]
        else:
            raise ValueError(f"domains.txt: unknown kind {kind!r} in {line!r}")
    for parent in filter(None, (p.strip() for p in parents.split(","))):
        if parent not in {t.name for t in known}:
            raise ValueError(f"domains.txt: {name!r} refers to {parent!r} before it is declared")
        columns.append(Column(f"{parent}_id", "fk", ref=parent))
    return Table(name, tuple(columns))


def parse_pools(text: str) -> Pools:
    """Read `pools.txt`: `name: value, value, ...`, one pool a line; a lone `|` separates halves."""
    pools: Pools = {}
    for line in text.splitlines():
        name, _, values = line.partition(":")
        if name.strip():
            pools[name.strip()] = tuple(v.strip() for v in values.split(","))
    return pools

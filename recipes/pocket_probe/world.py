"""Databases in which a noun of a question may be in one of two columns and in one of several forms."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random

from recipes.pocket.domain import Column, Domain, Stored, Table, Value
from recipes.pocket.world import World
from recipes.pocket_probe.storage import (
    COUNTRIES,
    LEAST,
    MOST,
    ORDINALS,
    PRIORS,
    SMALL,
    Form,
    Kind,
    Meaning,
    stored,
)

UNITS = {
    "price": "euros", "fee": "euros", "rent": "euros", "cost": "euros", "deposit": "euros", "weight": "kilograms",
    "load": "kilograms", "length": "metres", "width": "metres", "height": "metres", "depth": "metres",
    "volume": "litres",
}  # fmt: skip
NOUNS: dict[Kind, tuple[str, ...]] = {
    "amount": tuple(UNITS),
    "date": (
        "opening date",
        "delivery date",
        "purchase date",
        "inspection date",
        "launch date",
        "closing date",
    ),
    "rank": ("stage", "tier", "phase", "priority", "rank", "zone"),
    "word": ("colour", "material", "style", "finish", "season", "origin"),
    "country": ("country", "homeland", "destination"),
    "count": ("age", "score", "stock", "rating", "capacity"),
}
TYPES: dict[Kind, str] = {"count": "INTEGER", "amount": "NUMERIC"}
TWINS = ("listed", "stated", "recorded", "declared", "noted", "entered", "given", "known")
"""What the names of two columns for one noun begin with; none of them says which is filled."""
TWIN_SHARE = {"amount": 0.85, "date": 0.5, "rank": 0.5, "word": 1.0, "country": 1.0, "count": 0.0}
HEAD = 5
"""First rows of a table, which a result shows: they give its forms away."""
STALE_SHARE = 0.45
"""Of the later rows, those in which the column that is not kept has an old value."""

Draw = Callable[[str, Mapping[str, float]], str]
"""One of several things with their shares, for what it is drawn for."""


@dataclass(frozen=True, slots=True)
class Part:
    """A noun of a table, and the columns that it may be in."""

    noun: str
    kind: Kind
    columns: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Words:
    """Where a database's words come from: tables referred to and referring, parts of labels, values."""

    tables: tuple[str, str]
    labels: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...]
    values: tuple[str, ...]


class ProbeWorld(World):
    """A database in memory, what it means and how it is stored.

    Attributes:
        parts: The nouns of each table.
        forms: The form of each noun, by table and noun; that of the foreign key by its table and its column.
        meanings: The values of each noun, row by row, and of each label.
    """

    def __init__(
        self,
        domain: Domain,
        database: Stored,
        parts: Mapping[str, tuple[Part, ...]],
        forms: Mapping[tuple[str, str], Form],
        meanings: Mapping[tuple[str, str], Sequence[Meaning]],
    ) -> None:
        super().__init__(domain, {}, database)
        self.parts = parts
        self.forms = forms
        self.meanings = meanings


@cache
def bundled() -> tuple[tuple[str, str, str], ...]:
    """Split and the two tables of every bundled database."""
    found = []
    for line in (Path(__file__).parent / "designs.txt").read_text(encoding="utf-8").splitlines():
        split, _, pairs = line.partition(": ")
        if not line.startswith("#"):
            for pair in pairs.split(", "):
                parent, _, child = pair.partition(" > ")
                found.append((split, parent, child))
    return tuple(found)


def drawn(rng: Random) -> Draw:
    """Draws that do not know of each other."""
    return lambda _, shares: rng.choices(list(shares), list(shares.values()))[0]


def dealt(rng: Random) -> Draw:
    """Draws in which what came less often than its share is likelier, so that few have the right shares, too."""
    drawn: dict[str, list[str]] = {}

    def draw(what: str, shares: Mapping[str, float]) -> str:
        before = drawn.setdefault(what, [])
        due = [share * (len(before) + 1) - before.count(name) for name, share in shares.items()]
        before.append(rng.choices(list(shares), [max(lack, 0.0) + 0.1 for lack in due])[0])
        return before[-1]

    return draw


def build(db_id: str, words: Words, rng: Random, draw: Draw) -> ProbeWorld:
    """A database of two linked tables: what it means, and how that is stored."""
    parent, child = words.tables
    upper = _parts(rng, ("amount", "word"), frozenset())
    parts = {
        parent: upper,
        child: _parts(rng, ("amount", "date", "word"), frozenset(part.noun for part in upper)),
    }
    key, mark = f"{parent}_code", "".join(rng.sample("BDFGHJKLMNPQRSTVWXZ", 2)) + "-"
    forms = {(child, key): Form(draw("key", PRIORS["key"]), mark=mark)}
    meanings: dict[tuple[str, str], Sequence[Meaning]] = {}
    tables: list[Table] = []
    database: dict[str, list[tuple[Value | None, ...]]] = {}
    codes: list[str] = []
    for name in words.tables:
        count = rng.randint(8, 10) if name == parent else rng.randint(18, 22)
        label = rng.choice(("name", "title"))
        meanings[name, label] = _labels(rng, words, count)
        blocks: list[dict[Column, Sequence[Value | None]]] = [
            {Column(label, "label"): _texts(meanings[name, label])}
        ]
        for part in parts[name]:
            side = int(draw("side", {"0": 0.5, "1": 0.5})) if len(part.columns) > 1 else 0
            form = forms[name, part.noun] = Form(draw(part.kind, PRIORS[part.kind]), side)
            meanings[name, part.noun] = _meanings(rng, part.kind, count, words.values)
            live = [stored(part.kind, form.style, value) for value in meanings[name, part.noun]]
            kept = {column: live if place == side else _abandoned(rng, part.kind, live)
                    for place, column in enumerate(part.columns)}  # fmt: skip
            declared = TYPES.get(part.kind, "TEXT")
            blocks.append(
                {Column(column, "cat", declared=declared): cells for column, cells in kept.items()}
            )
        rng.shuffle(blocks)
        if name == parent:
            codes = sorted(f"{mark}{number}" for number in rng.sample(range(10, 99), count))
            blocks.insert(0, {Column("code", "pk", declared="TEXT"): codes})
        else:
            blocks.insert(0, {Column("id", "pk"): range(1, count + 1)})
            referred = _references(rng, codes, count, forms[child, key])
            blocks.append({Column(key, "fk", ref=parent, declared="TEXT"): referred})
        columns = {column: cells for block in blocks for column, cells in block.items()}
        tables.append(Table(name, tuple(columns)))
        database[name] = list(zip(*columns.values(), strict=True))
    return ProbeWorld(Domain(db_id, tuple(tables)), database, parts, forms, meanings)


def _parts(rng: Random, kinds: Sequence[Kind], taken: frozenset[str]) -> tuple[Part, ...]:
    """Nouns for one table; a word may be a country or a rank instead, and some tables have a plain number, too."""
    found: list[Part] = []
    for kind in (*kinds, *(("count",) if rng.random() < 0.7 else ())):
        if kind == "word":
            kind = rng.choice(("word", "country", "rank"))
        noun = rng.choice([noun for noun in NOUNS[kind] if noun not in taken])
        name = noun.replace(" ", "_")
        twins = rng.sample(TWINS, 2) if rng.random() < TWIN_SHARE.get(kind, 0) else []
        found.append(Part(noun, kind, tuple(f"{twin}_{name}" for twin in twins) or (name,)))
    return tuple(found)


def _labels(rng: Random, words: Words, count: int) -> list[Meaning]:
    firsts, seconds = rng.choice(words.labels)
    return [f"{first} {rng.choice(seconds)}" for first in rng.sample(firsts, count)]


def _texts(values: Sequence[Meaning]) -> list[Value]:
    return [str(value) for value in values]


def _meanings(rng: Random, kind: Kind, count: int, values: Sequence[str]) -> list[Meaning]:
    """Values, the first of them such that they show the form that they are stored in."""
    if kind == "amount":
        low, high = math.log(LEAST), math.log(MOST)
        amounts: dict[Meaning, None] = {rng.randint(LEAST, SMALL): None}
        while len(amounts) < count:
            amounts[round(math.exp(rng.uniform(low, high)))] = None
        least, *others = amounts
        return _led(rng, [least], others)
    if kind == "count":
        return [*rng.sample(range(1, 100), count)]
    if kind == "rank":
        return _led(
            rng, [1, len(ORDINALS)], [rng.randint(1, len(ORDINALS)) for _ in range(count - 2)]
        )
    if kind == "date":
        # Days are often numbers of these months, so that day and month can be mistaken for each other.
        years, months = rng.sample(range(2015, 2025), 2), rng.sample(range(1, 13), 4)
        dates: list[Meaning] = []
        for _ in range(count):
            day = rng.choice(months) if rng.random() < 0.6 else rng.randint(13, 28)
            dates.append((rng.choice(years), rng.choice(months), day))
        return _led(rng, [(rng.choice(years), rng.choice(months), rng.randint(13, 28))], dates[1:])
    pool = list(COUNTRIES) if kind == "country" else _distinct(rng, values)
    return [*rng.choices(rng.sample(pool, 4), (4, 3, 3, 2), k=count)]


def _led(rng: Random, telling: Sequence[Meaning], others: Sequence[Meaning]) -> list[Meaning]:
    """Values of which some are among the first."""
    head = [*telling, *others[: HEAD - len(telling)]]
    rng.shuffle(head)
    return [*head, *others[HEAD - len(telling) :]]


def _distinct(rng: Random, values: Sequence[str]) -> list[str]:
    """Words whose abbreviations differ."""
    found: dict[str, str] = {}
    for value in rng.sample(values, 12):
        found.setdefault(value[:3].upper(), value)
    return [*found.values()]


def _abandoned(rng: Random, kind: Kind, live: Sequence[Value]) -> list[Value | None]:
    """What the column holds that is kept no longer: nothing but a few old values, which are not among the first."""
    blank: Value | None = rng.choice((None, None, 0 if kind == "amount" else ""))
    old = [rng.choice(live) if rng.random() < STALE_SHARE else blank for _ in live[HEAD:]]
    return [*[blank] * HEAD, *old]


def _references(rng: Random, codes: Sequence[str], count: int, form: Form) -> list[Value | None]:
    """Foreign keys as they are stored, two of them NULL; one or two codes are not referred to."""
    used = rng.sample(codes, len(codes) - rng.randint(1, 2))
    keys: list[Value | None] = [
        stored("key", form.style, code, form.mark) for code in rng.choices(used, k=count)
    ]
    for place in rng.sample(range(HEAD, count), 2):
        keys[place] = None
    return keys

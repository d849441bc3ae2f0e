"""Random databases to pre-train on: names and values drawn from a large vocabulary and from invented words.

No table of a bundled `pocket` database can come out: their names are taken out of the vocabulary and refused
among invented words, so no (table, column) pair, schema line or question of `pocket` is ever seen.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from random import Random

from recipes.pocket.domain import Column, Domain, Pools, Table, parse_pools
from recipes.pocket.generate import bundled_domains

_ONSETS = (*"bcdfghjklmnprstvwz", "br", "cl", "dr", "fl", "gr", "pl", "pr", "sk", "st", "tr", "th")
_VOWELS = (*"aeiou", "ai", "ea", "oo")
_CODAS = ("", "", "n", "r", "l", "t", "m", "k", "nd", "rt")
_SCALES = (
    (1, 60), (5, 100), (18, 95), (50, 900), (100, 9000), (500, 60000), (1000, 90000), (20000, 900000),
    (100000, 9000000),
)  # fmt: skip
_REAL_SCALES = ((1, 6), (1, 10), (2, 60), (5, 30), (10, 120), (1, 900))
_SHAPES = ("chain", "chain", "chain", "chain", "long", "long", "fork", "fork", "meet", "meet")


@cache
def vocabulary() -> Pools:
    """The words of `vocabulary.txt`, without the table names of the bundled databases."""
    text = (Path(__file__).parent / "vocabulary.txt").read_text(encoding="utf-8")
    pools = parse_pools("\n".join(line for line in text.splitlines() if not line.startswith("#")))
    pools["nouns"] = tuple(sorted(set(pools["nouns"]) - bundled_tables()))
    return pools


@cache
def bundled_tables() -> frozenset[str]:
    """Table names of every bundled database, training and validation."""
    return frozenset(table.name for _, domain in bundled_domains() for table in domain.tables)


def invented(rng: Random) -> str:
    """A word that no dictionary has: syllables such as `drelton`, or pieces of words such as `stagerine`."""
    if rng.random() < 0.4:
        parts = [
            rng.choice(_ONSETS) + rng.choice(_VOWELS) + rng.choice(_CODAS)
            for _ in range(rng.randint(2, 3))
        ]
        return "".join(parts)
    first, second = rng.choice(_stems()), rng.choice(_stems())
    word = (
        first[: rng.randint(1, min(5, len(first)))] + second[-rng.randint(2, min(6, len(second))) :]
    )
    return word if word not in bundled_tables() and word not in reserved() else invented(rng)


@cache
def reserved() -> frozenset[str]:
    """SQLite's keywords: no name without quotes."""
    return frozenset((Path(__file__).parent / "reserved.txt").read_text(encoding="utf-8").split())


@cache
def _stems() -> tuple[str, ...]:
    """Every word of the vocabulary in small letters: what invented words are cut from."""
    pools = vocabulary().values()
    words = {
        part for pool in pools for value in pool for part in value.lower().replace("_", " ").split()
    }
    return tuple(sorted(word for word in words if len(word) > 3 and word.isalpha()))


def random_domain(rng: Random) -> Domain:
    """Two or three linked tables with names and columns drawn at random."""
    shape = rng.choice(_SHAPES)
    names: list[str] = []
    while len(names) < (2 if shape == "chain" else 3):
        name = _table_name(rng)
        if not any(name in other or other in name for other in names):
            names.append(name)
    parents: dict[str, list[list[int]]] = {
        "chain": [[], [0]],
        "long": [[], [0], [1]],
        "fork": [[], [0], [0]],
        "meet": [[], [], [0, 1]],
    }
    plain = rng.random() < 0.25
    keys_last = rng.random() < 0.7
    tables = []
    for name, refs in zip(names, parents[shape], strict=True):
        pk = Column("id" if plain else f"{name}_id", "pk")
        keys = [Column(f"{names[ref]}_id", "fk", ref=names[ref]) for ref in refs]
        body = _columns(rng, names)
        if rng.random() < 0.25:
            rng.shuffle(body)
        tables.append(Table(name, (pk, *body, *keys) if keys_last else (pk, *keys, *body)))
    return Domain("world", tuple(tables))


def _table_name(rng: Random) -> str:
    while True:
        draw = rng.random()
        if draw < 0.35:
            name = invented(rng)
        elif draw < 0.43:
            name = f"{rng.choice(vocabulary()['modifiers'])}_{rng.choice(vocabulary()['nouns'])}"
        else:
            name = rng.choice(vocabulary()["nouns"])
        if name not in bundled_tables() and not name.endswith("s"):
            return name


def _columns(rng: Random, tables: list[str]) -> list[Column]:
    columns = [_label(rng)]
    taken = {columns[0].name, "id", *tables}
    kinds = ["cat"] * rng.choice((0, 1, 1, 1, 2)) + ["number"] * rng.choice((1, 1, 1, 2, 2))
    rng.shuffle(kinds)
    for kind in kinds:
        while True:
            column = _category(rng) if kind == "cat" else _number(rng)
            if column.name not in taken and not column.name.endswith("_id"):
                break
        taken.add(column.name)
        columns.append(column)
    return columns


def _named(rng: Random, pool: tuple[str, ...]) -> str:
    draw = rng.random()
    if draw < 0.25:
        return invented(rng)
    if draw < 0.38:
        return f"{rng.choice(vocabulary()['modifiers'])}_{rng.choice(pool)}"
    return rng.choice(pool)


def _number(rng: Random) -> Column:
    draw = rng.random()
    if draw < 0.2:
        low = rng.randint(1600, 1995)
        return Column(
            rng.choice(vocabulary()["years"]),
            "year",
            low=low,
            high=min(2024, low + rng.randint(45, 200)),
        )
    name = _named(rng, vocabulary()["numbers"])
    if draw < 0.4:
        low, high = rng.choice(_REAL_SCALES)
        return Column(name, "real", low=low, high=high)
    low, high = rng.choice(_SCALES)
    return Column(name, "int", low=low, high=high)


def _category(rng: Random) -> Column:
    values = [_value(rng) for _ in range(rng.randint(3, 6))]
    return Column(_named(rng, vocabulary()["categories"]), "cat", tuple(dict.fromkeys(values)))


def _value(rng: Random) -> str:
    draw = rng.random()
    if draw < 0.2:
        word = invented(rng)
        return word.capitalize() if rng.random() < 0.6 else word
    if draw < 0.26:
        return f"{rng.choice('ABCDEFGH')}{rng.randint(1, 9)}"
    if draw < 0.32:
        return f"{rng.choice(vocabulary()['values'])} {rng.choice(vocabulary()['values'])}"
    return rng.choice(vocabulary()["values"])


def _label(rng: Random) -> Column:
    words = vocabulary()
    name = rng.choice(words["labels"])
    draw = rng.random()
    if draw < 0.3:
        firsts, seconds = rng.sample(words["firsts"], 24), rng.sample(words["lasts"], 12)
    elif draw < 0.55:
        firsts, seconds = rng.sample(words["adjectives"], 24), rng.sample(words["things"], 10)
    elif draw < 0.75:
        pool = tuple(dict.fromkeys(invented(rng).capitalize() for _ in range(40)))
        return Column(name, "label", pool)
    else:
        return Column(name, "label", tuple(rng.sample(words["things"] + words["adjectives"], 24)))
    return Column(name, "label", (*firsts, "|", *seconds))

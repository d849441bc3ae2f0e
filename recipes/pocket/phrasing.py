"""Words for questions: requests, conditions, comparisons and superlatives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from recipes.pocket.domain import Column, Table, Value, literal
from recipes.pocket.world import World

REQUESTS = (
    "List the {c} of {n}.",
    "Show the {c} of {n}.",
    "What is the {c} of {n}?",
    "Give the {c} of {n}.",
    "Find the {c} of {n}.",
    "Return the {c} of {n}.",
)
COUNTS = (
    "How many {n} are there?",
    "Count the {n}.",
    "What is the number of {n}?",
    "Give the number of {n}.",
)

NUMBER_WORDS = {2: "two", 3: "three", 4: "four", 5: "five"}

# The adjectives of a column, by the last word of its name: (largest, smallest).
ADJECTIVES = {
    "age": ("oldest", "youngest"),
    "price": ("most expensive", "cheapest"),
    "height": ("tallest", "shortest"),
    "length": ("longest", "shortest"),
    "weight": ("heaviest", "lightest"),
    "salary": ("best paid", "worst paid"),
    "area": ("largest", "smallest"),
    "depth": ("deepest", "shallowest"),
}

COMPARISONS = {
    ">": ("more than {v}", "greater than {v}", "above {v}", "over {v}"),
    "<": ("less than {v}", "below {v}", "under {v}", "smaller than {v}"),
    ">=": ("at least {v}", "{v} or more", "no less than {v}", "{v} or above"),
    "<=": ("at most {v}", "{v} or less", "no more than {v}", "{v} or below"),
}
YEARS = {
    ">": ("after {v}",),
    "<": ("before {v}",),
    ">=": ("{v} or later", "not before {v}"),
    "<=": ("{v} or earlier", "not after {v}"),
}


@dataclass(frozen=True, slots=True)
class Condition:
    """A condition on one table: words that follow the plural noun, SQL, and the SQL of a slip in its bound."""

    words: str
    sql: str
    slip: str = ""


def request(rng: Random, columns: Sequence[Column], noun: str) -> str:
    """A request for columns of what `noun` names."""
    return rng.choice(REQUESTS).format(c=listing([c.phrase for c in columns]), n=noun)


def listing(words: Sequence[str]) -> str:
    return " and ".join(words)


def picks(rng: Random, table: Table, most: int = 2) -> list[Column]:
    """One or two columns to show, the label more often than not."""
    columns = [c for c in table.columns if c.kind not in ("pk", "fk")]
    first = table.label if rng.random() < 0.6 else rng.choice(columns)
    if most > 1 and rng.random() < 0.35:
        second = rng.choice([c for c in columns if c is not first])
        return [first, second]
    return [first]


def numbers(table: Table, *, years: bool = True) -> list[Column]:
    return list(table.of("int", "real", *(("year",) if years else ())))


def equals(world: World, rng: Random, table: Table, prefix: str = "") -> Condition | None:
    """`whose genre is Jazz`."""
    if not table.of("cat"):
        return None
    column = rng.choice(table.of("cat"))
    value = rng.choice(world.values(table, column))
    return Condition(f"{column.phrase} is {value}", f"{prefix}{column.name} = {literal(value)}")


def compares(world: World, rng: Random, table: Table, operators: str = "> < >= <=", prefix: str = "",
             column: Column | None = None) -> Condition | None:  # fmt: skip
    """`whose age is at least 30`; bounds are values of the data, so that strict and loose bounds differ."""
    columns = [column] if column else numbers(table)
    if not columns:
        return None
    column = rng.choice(columns)
    operator = rng.choice(operators.split())
    ordered = sorted(world.values(table, column))
    value = ordered[rng.randrange(2, len(ordered) - 2)]
    words = rng.choice((YEARS if column.kind == "year" else COMPARISONS)[operator]).format(v=value)
    slip = f"{prefix}{column.name} {operator[0]} {value}" if len(operator) == 2 else ""
    return Condition(
        f"{column.phrase} is {words}", f"{prefix}{column.name} {operator} {value}", slip
    )


def condition(
    world: World, rng: Random, table: Table, prefix: str = "", bounds: bool = True
) -> Condition | None:
    """Any single condition; without `bounds` none that a slip in the bound could change."""
    if rng.random() < 0.5:
        return equals(world, rng, table, prefix)
    return compares(world, rng, table, "> < >= <=" if bounds else "> <", prefix)


def whose(rng: Random, table: Table, words: str) -> str:
    """The plural noun with a condition."""
    return f"{table.plural} {rng.choice(('whose', 'where the'))} {words}"


def superlative(rng: Random, table: Table, column: Column, most: bool) -> str:
    """`singer with the highest age`, or `oldest singer` where the column has an adjective of its own."""
    adjectives = ADJECTIVES.get(column.name.split("_")[-1])
    rivals = [c for c in numbers(table) if ADJECTIVES.get(c.name.split("_")[-1]) == adjectives]
    if adjectives and len(rivals) == 1 and rng.random() < 0.4:
        return f"{adjectives[not most]} {table.singular}"
    words = ("latest", "earliest") if column.kind == "year" else rng.choice(
        (("highest", "lowest"), ("largest", "smallest")))  # fmt: skip
    return f"{table.singular} with the {words[not most]} {column.phrase}"


def quoted(value: Value) -> str:
    return f'"{value}"'

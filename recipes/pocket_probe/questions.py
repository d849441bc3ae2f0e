"""Questions, what they mean, and the query that a meaning comes to once it is known how a database stores it.

One grammar in both directions: a question is written from a template and read by it again, from its text and the schema
text alone. Gold, the drafts of the oracles and the training data are all written from what was read.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from random import Random
from string import Formatter

from recipes.pocket.domain import literal, pluralize
from recipes.pocket_probe.storage import (
    FACTORS,
    MONTHS,
    ORDINALS,
    Form,
    Kind,
    Meaning,
    condition,
    joined_key,
)
from recipes.pocket_probe.templates import FUNCTIONS, TEMPLATES
from recipes.pocket_probe.world import NOUNS, UNITS, Part, ProbeWorld

KINDS: dict[str, Kind] = {noun: kind for kind, nouns in NOUNS.items() for noun in nouns}
SHARES: dict[Kind, float] = {
    "count": 0.07,
    "amount": 1,
    "date": 6,
    "rank": 4,
    "word": 4,
    "country": 4,
}
"""How often a noun of a kind is tried; more often where few questions are sound."""
OPERATORS = {"above": ">", "below": "<"}


class Schema:
    """What a schema text says of two linked tables.

    Attributes:
        columns: Names of columns by table.
        parent: The table that is referred to, by its code.
        child: The table that refers.
        key: The column that it does so with.
    """

    def __init__(self, text: str) -> None:
        self.columns: dict[str, tuple[str, ...]] = {}
        for line in text.splitlines():
            table, _, body = line.rstrip(")").partition("(")
            self.columns[table] = tuple(column.split()[0] for column in body.split(", "))
            if link := re.search(r"(\w+) text -> (\w+)\.code$", body):
                self.child, (self.key, self.parent) = table, link.groups()

    def label(self, table: str) -> str:
        """The column that names a row."""
        return next(column for column in self.columns[table] if column in ("name", "title"))

    def part(self, table: str, noun: str) -> Part:
        """A noun of a table.

        Raises:
            KeyError: The table has none of that name.
        """
        name = noun.replace(" ", "_")
        columns = tuple(c for c in self.columns[table] if c == name or c.endswith(f"_{name}"))
        if not columns:
            raise KeyError(noun)
        return Part(noun, KINDS[noun], columns)


@dataclass(frozen=True, slots=True)
class Condition:
    """What must be so of a row."""

    table: str
    part: Part
    operator: str
    value: Meaning

    def words(self) -> str:
        noun, value = self.part.noun, self.value
        if isinstance(value, tuple):
            return f"{noun} is in {MONTHS[value[1] - 1]} {value[0]}"
        if self.part.kind == "rank":
            return f"{noun} is the {ORDINALS[int(value) - 1]}"
        if isinstance(value, str):
            return f"{noun} is {value}"
        word = next(word for word, operator in OPERATORS.items() if operator == self.operator)
        unit = f" {UNITS[noun]}" if noun in UNITS else ""
        return f"{noun} is {word} {value}{unit}"


@dataclass(frozen=True, slots=True)
class Measure:
    """A number of a table."""

    table: str
    part: Part


Meant = str | Condition | Measure


@dataclass(frozen=True)
class Plan:
    """What a question means.

    Attributes:
        kind: The template's name.
        meant: What it says in each place.
    """

    kind: str
    meant: Mapping[str, Meant]
    schema: Schema = field(compare=False, repr=False)

    def condition(self, place: str) -> Condition:
        found = self.meant[place]
        assert isinstance(found, Condition)
        return found

    def measure(self, place: str = "m") -> Measure:
        found = self.meant[place]
        assert isinstance(found, Measure)
        return found

    @cached_property
    def nouns(self) -> tuple[Condition | Measure, ...]:
        """What it says about nouns, in order."""
        return tuple(value for value in self.meant.values() if not isinstance(value, str))

    @property
    def linked(self) -> bool:
        """Whether the foreign key matters."""
        return TEMPLATES[self.kind].linked

    @property
    def measured(self) -> bool:
        """Whether a number is asked for, and not just what has it."""
        return "in {u}" in TEMPLATES[self.kind].patterns[0]

    def traps(self) -> tuple[str, ...]:
        """What decides and is not in the schema text, sorted."""
        found = {"key"} if self.linked else set()
        for noun in self.nouns:
            if len(noun.part.columns) > 1:
                found.add("column")
            if noun.part.kind != "count" and (
                noun.part.kind != "amount" or isinstance(noun, Condition) or self.measured
            ):
                found.add({"amount": "unit", "country": "word"}.get(noun.part.kind, noun.part.kind))
        return tuple(sorted(found))


class Writer:
    """Queries in one guess of how a database stores things.

    Args:
        forms: The guess, as `ProbeWorld.forms` has it.
    """

    def __init__(self, forms: Mapping[tuple[str, str], Form]) -> None:
        self.forms = forms

    def column(self, noun: Condition | Measure, prefix: str = "") -> str:
        """The column that is filled."""
        return prefix + noun.part.columns[self.forms[noun.table, noun.part.noun].side]

    def where(self, noun: Condition, prefix: str = "") -> str:
        style = self.forms[noun.table, noun.part.noun].style
        return condition(
            noun.part.kind, (style,), self.column(noun, prefix), noun.operator, noun.value
        )

    def number(self, noun: Measure, prefix: str = "", function: str = "") -> str:
        """A number in its unit."""
        factor = FACTORS.get(self.forms[noun.table, noun.part.noun].style, 1)
        column = self.column(noun, prefix)
        value = f"{function}({column})" if function else column
        return value if factor == 1 else f"{value} / {factor}.0"

    def key(self, schema: Schema, prefix: str = "") -> str:
        """The code that a foreign key refers to."""
        return joined_key(self.forms[schema.child, schema.key], prefix + schema.key)

    def code(self, prefix: str = "") -> str:
        """The code itself, as it is compared."""
        return f"{prefix}code"

    def query(self, plan: Plan) -> str:
        """The query that a plan comes to."""
        schema, sql = plan.schema, TEMPLATES[plan.kind].sql
        parts: dict[str, str] = {}
        if plan.linked:
            on = f"{self.key(schema, 'T1.')} = {self.code('T2.')}"
            parts = {
                "parent": schema.parent, "child": schema.child, "fk": schema.key, "pl": schema.label(schema.parent),
                "key": self.key(schema), "code": self.code(),
                "join": f"{schema.child} AS T1 JOIN {schema.parent} AS T2 ON {on}",
            }  # fmt: skip
        for place, found in plan.meant.items():
            prefix = "" if "{join}" not in sql else "T2." if place.startswith("p") else "T1."
            if isinstance(found, Condition):
                parts[place] = self.where(found, prefix)
            elif isinstance(found, Measure):
                parts |= {
                    "column": self.column(found, prefix),
                    "number": self.number(found, prefix),
                }
                if place in ("m", "n") and "a" in plan.meant:
                    parts["number"] = self.number(found, prefix, FUNCTIONS[str(plan.meant["a"])])
            elif place == "t":
                parts |= {"t": found, "l": schema.label(found)}
            elif place == "a":
                parts["order"] = " DESC" if found == "highest" else ""
            else:
                parts[place] = literal(found)
        return sql.format(**parts)


_PLACES = {
    "l": r"(?:name|title)", "pl": r"(?:name|title)", "u": r"[a-z]+", "x": r'[^"]+', "px": r'[^"]+',
    "a": "|".join(FUNCTIONS), "m": "|".join(NOUNS["amount"] + NOUNS["count"]), "pm": "|".join(NOUNS["amount"]),
    "n": "|".join(NOUNS["count"]),
}  # fmt: skip
_CONDITION = re.compile(
    r"(?P<noun>[a-z ]+?) is (?:in (?P<month>[A-Z]\w+) (?P<year>\d{4})|(?P<operator>above|below) (?P<bound>\d+)"
    r"(?: [a-z]+)?|the (?P<ordinal>[a-z]+)|(?P<word>[A-Z]\w*))"
)


@cache
def _expression(pattern: str) -> re.Pattern[str]:
    parts = []
    for text, place, _, _ in Formatter().parse(pattern):
        parts.append(re.escape(text))
        if place:
            parts.append(f"(?P<{place}>{_PLACES.get(place, '.+?')})")
    return re.compile("".join(parts))


def read(question: str, schema: Schema) -> Plan:
    """What a question means, from its text and the schema text.

    Raises:
        ValueError: It is none of the grammar, or means two things.
    """
    found = [plan for kind, template in TEMPLATES.items() for pattern in template.patterns
             if (plan := _read(question, kind, pattern, schema)) is not None]  # fmt: skip
    if len(found) != 1:
        raise ValueError(f"{len(found)} readings of {question!r}")
    return found[0]


def _read(question: str, kind: str, pattern: str, schema: Schema) -> Plan | None:
    matched = _expression(pattern).fullmatch(question)
    if matched is None:
        return None
    said = matched.groupdict()
    tables = {
        name for name in schema.columns if {said.get("t"), said.get("ts")} & {name, pluralize(name)}
    }
    if "{p" in pattern:
        parents = {schema.parent, pluralize(schema.parent), None}
        if tables != {schema.child} or not {said.get("p"), said.get("ps")} <= parents:
            return None
    if len(tables) != 1:
        return None
    table = tables.pop()
    meant: dict[str, Meant] = {"t": table}
    try:
        for place in TEMPLATES[kind].places:
            owner = schema.parent if place.startswith("p") else table
            if place in ("c", "d", "pc"):
                meant[place] = _condition(said[place], owner, schema)
            elif place in ("m", "pm", "n"):
                meant[place] = Measure(owner, schema.part(owner, said[place]))
            else:
                meant[place] = said[place]
    except KeyError:
        return None
    return Plan(kind, meant, schema)


def _condition(words: str, table: str, schema: Schema) -> Condition:
    matched = _CONDITION.fullmatch(words)
    if matched is None:
        raise KeyError(words)
    said = matched.groupdict()
    part = schema.part(table, said["noun"])
    if said["operator"]:
        return Condition(table, part, OPERATORS[said["operator"]], int(said["bound"]))
    if said["month"]:
        return Condition(table, part, "=", (int(said["year"]), MONTHS.index(said["month"]) + 1, 0))
    return Condition(
        table, part, "=", ORDINALS.index(said["ordinal"]) + 1 if said["ordinal"] else said["word"]
    )


def any_kind(rng: Random) -> str:
    """The name of a template."""
    return rng.choices(list(TEMPLATES), [template.weight for template in TEMPLATES.values()])[0]


def ask(world: ProbeWorld, schema: Schema, rng: Random, kind: str) -> tuple[str, Plan] | None:
    """A question of one template and what it means; None where the world lacks what it needs."""
    template = TEMPLATES[kind]
    table = schema.child if template.linked else rng.choice((schema.child, schema.parent))
    meant: dict[str, Meant] = {"t": table}
    for place in template.places:
        owner = schema.parent if place.startswith("p") else table
        drawn = _drawn(world, schema, rng, place, owner, kind)
        if drawn is None:
            return None
        meant[place] = drawn
    nouns = [_noun(meant[place]) for place in ("m", "c", "d") if place in meant]
    if len(set(nouns)) < len(nouns):
        return None
    plan = Plan(kind, meant, schema)
    words = {
        place: value.words() if isinstance(value, Condition) else _noun(value)
        for place, value in meant.items()
    }
    words |= {"ts": pluralize(table), "p": schema.parent, "ps": pluralize(schema.parent)}
    words |= {"l": schema.label(table), "pl": schema.label(schema.parent)}
    words["u"] = UNITS.get(words.get("m", words.get("pm", "")), "")
    return rng.choice(template.patterns).format(**words), plan


def _noun(value: Meant) -> str:
    return value if isinstance(value, str) else value.part.noun


def _drawn(
    world: ProbeWorld, schema: Schema, rng: Random, place: str, table: str, kind: str
) -> Meant | None:
    if place == "a":
        return rng.choice(("highest", "lowest") if kind == "extreme" else tuple(FUNCTIONS))
    if place in ("x", "px"):
        return str(rng.choice(world.meanings[table, schema.label(table)]))
    kinds: tuple[Kind, ...] = ("amount", "date", "rank", "word", "country", "count")
    if place in ("m", "pm", "n"):
        kinds = (
            ("count",)
            if place == "n"
            else ("amount", "count")
            if kind == "extreme"
            else ("amount",)
        )
    parts = [part for part in world.parts[table] if part.kind in kinds]
    if not parts:
        return None
    part = rng.choices(parts, [SHARES[part.kind] for part in parts])[0]
    if place in ("m", "pm", "n"):
        return Measure(table, part)
    values = world.meanings[table, part.noun]
    if part.kind in ("amount", "count"):
        bound = sorted(int(str(value)) for value in values)[rng.randrange(2, len(values) - 2)]
        return Condition(table, part, rng.choice((">", "<")), bound)
    value = rng.choice(values)
    return Condition(
        table, part, "=", (value[0], value[1], 0) if isinstance(value, tuple) else value
    )

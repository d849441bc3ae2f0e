"""The ways to ask, and the query that each comes to."""

from __future__ import annotations

from dataclasses import dataclass
from string import Formatter

FUNCTIONS = {"total": "SUM", "average": "AVG", "highest": "MAX", "lowest": "MIN"}


@dataclass(frozen=True, slots=True)
class Template:
    """A way to ask.

    Attributes:
        weight: How often it is tried.
        patterns: Wordings, with places: `t`, `ts` the table, `p`, `ps` the one that it refers to, `l`, `pl` their
            labels' columns, `x`, `px` a label, `m`, `pm` a number and `u` its unit, `n` a plain number, `c`, `d`, `pc`
            conditions, `a` a word of `FUNCTIONS`.
        sql: What it comes to.
    """

    level: str
    weight: float
    patterns: tuple[str, ...]
    sql: str

    @property
    def linked(self) -> bool:
        return "{p" in self.patterns[0]

    @property
    def places(self) -> tuple[str, ...]:
        """The places that are drawn, in order."""
        names = [name for _, name, _, _ in Formatter().parse(self.patterns[0]) if name]
        return tuple(
            dict.fromkeys(
                name for name in names if name not in ("t", "ts", "p", "ps", "l", "pl", "u")
            )
        )


TEMPLATES: dict[str, Template] = {
    "count_all": Template("easy", 0.8, ("How many {ts} are there?", "Count the {ts}."), "SELECT COUNT(*) FROM {t}"),
    "list_all": Template(
        "easy", 0.8,
        ("List the {l} of all {ts}.", "Show the {l} of every {t}."),
        "SELECT {l} FROM {t}",
    ),
    "plain": Template(
        "easy", 1,
        ("What is the {a} {n} of all {ts}?", "Give the {a} {n} of the {ts}."),
        "SELECT {number} FROM {t}",
    ),
    "count_where": Template(
        "easy", 3,
        ("How many {ts} are there whose {c}?", "Count the {ts} whose {c}."),
        "SELECT COUNT(*) FROM {t} WHERE {c}",
    ),
    "list_where": Template(
        "easy", 3,
        ("List the {l} of the {ts} whose {c}.", "What is the {l} of the {ts} whose {c}?"),
        "SELECT {l} FROM {t} WHERE {c}",
    ),
    "count_two": Template(
        "medium", 3,
        ("How many {ts} are there whose {c} and whose {d}?", "Count the {ts} whose {c} and whose {d}."),
        "SELECT COUNT(*) FROM {t} WHERE {c} AND {d}",
    ),
    "list_two": Template(
        "medium", 3,
        ("List the {l} of the {ts} whose {c} and whose {d}.", "Show the {l} of the {ts} whose {c} and whose {d}."),
        "SELECT {l} FROM {t} WHERE {c} AND {d}",
    ),
    "aggregate": Template(
        "medium", 2,
        ("What is the {a} {m} in {u} of all {ts}?", "Give the {a} {m} in {u} of the {ts}."),
        "SELECT {number} FROM {t}",
    ),
    "aggregate_where": Template(
        "medium", 3,
        ("What is the {a} {m} in {u} of the {ts} whose {c}?", "Find the {a} {m} in {u} of all {ts} whose {c}."),
        "SELECT {number} FROM {t} WHERE {c}",
    ),
    "value_of": Template(
        "easy", 2,
        ('What is the {m} in {u} of the {t} "{x}"?', 'Give the {m} in {u} of the {t} "{x}".'),
        "SELECT {number} FROM {t} WHERE {l} = {x}",
    ),
    "extreme": Template(
        "medium", 1.5,
        ("Give the {l} of the {t} with the {a} {m}.", "What is the {l} of the {t} with the {a} {m}?"),
        "SELECT {l} FROM {t} ORDER BY {column}{order} LIMIT 1",
    ),
    "children_of": Template(
        "medium", 0.2,
        ('How many {ts} belong to the {p} "{px}"?', 'Count the {ts} of the {p} "{px}".'),
        "SELECT COUNT(*) FROM {join} WHERE T2.{pl} = {px}",
    ),
    "childless": Template(
        "hard", 0.25,
        ("List the {pl} of the {ps} without {ts}.", "Show the {pl} of the {ps} that have no {ts}."),
        "SELECT {pl} FROM {parent} WHERE {code} NOT IN (SELECT {key} FROM {child} WHERE {fk} IS NOT NULL)",
    ),
    "count_of_parents": Template(
        "hard", 3,
        ("How many {ts} are there whose {p}'s {pc}?", "Count the {ts} whose {p}'s {pc}."),
        "SELECT COUNT(*) FROM {join} WHERE {pc}",
    ),
    "list_of_parents": Template(
        "hard", 3,
        ("List the {l} of the {ts} whose {p}'s {pc}.", "Show the {l} of the {ts} whose {p}'s {pc}."),
        "SELECT T1.{l} FROM {join} WHERE {pc}",
    ),
    "list_of_parent": Template(
        "hard", 2,
        (
            'List the {l} of the {ts} of the {p} "{px}" whose {c}.',
            'Show the {l} of the {ts} of the {p} "{px}" whose {c}.',
        ),
        "SELECT T1.{l} FROM {join} WHERE T2.{pl} = {px} AND {c}",
    ),
    "aggregate_of_parent": Template(
        "hard", 3,
        (
            'What is the {a} {m} in {u} of the {ts} of the {p} "{px}"?',
            'Find the {a} {m} in {u} of the {ts} that belong to the {p} "{px}".',
        ),
        "SELECT {number} FROM {join} WHERE T2.{pl} = {px}",
    ),
    "aggregate_of_parents": Template(
        "extra", 2,
        (
            "What is the {a} {m} in {u} of the {ts} whose {p}'s {pc}?",
            "Find the {a} {m} in {u} of all {ts} whose {p}'s {pc}.",
        ),
        "SELECT {number} FROM {join} WHERE {pc}",
    ),
    "parent_value": Template(
        "medium", 2,
        (
            'What is the {pm} in {u} of the {p} of the {t} "{x}"?',
            'Give the {pm} in {u} of the {p} that the {t} "{x}" belongs to.',
        ),
        "SELECT {number} FROM {join} WHERE T1.{l} = {x}",
    ),
    "count_both": Template(
        "extra", 2,
        (
            "How many {ts} are there whose {c} and whose {p}'s {pc}?",
            "Count the {ts} whose {c} and whose {p}'s {pc}.",
        ),
        "SELECT COUNT(*) FROM {join} WHERE {c} AND {pc}",
    ),
}  # fmt: skip

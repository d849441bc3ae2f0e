"""Generated questions over the schemas of real ones: plain queries that any schema allows, said in several ways.

They teach what Spider's own few thousand questions are too few for: to name the right table, columns and keys of a
schema never seen. Nothing is executed, so they serve to write queries only.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from random import Random

from harness_sql.sqlite.schema import Column
from recipes.pocket_sql.worlds import invented, vocabulary
from recipes.spider_sql.questions import Question, Tables

_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_NUMERIC = re.compile(r"int|real|num|dec|float|double", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class _Table:
    name: str
    columns: list[Column]

    @property
    def plain(self) -> list[Column]:
        """Columns that are neither key nor reference."""
        return [c for c in self.columns if not c.key and not c.target]

    @property
    def numbers(self) -> list[Column]:
        return [c for c in self.plain if _NUMERIC.search(c.type)]

    @property
    def texts(self) -> list[Column]:
        return [c for c in self.plain if not _NUMERIC.search(c.type)]


def generated(tables: Tables, rng: Random) -> Question | None:
    """A question over a schema, or None where the draw does not fit it."""
    usable = [
        _Table(name, columns)
        for name, columns in tables.items()
        if name.isidentifier() and all(c.name.isidentifier() for c in columns)
    ]
    links = [
        (child, column, parent, target)
        for child in usable
        for column in child.columns
        for parent in usable
        for target in parent.columns
        if parent is not child and column.target.lower() == f"{parent.name}.{target.name}".lower()
    ]
    if not usable:
        return None
    made = (
        _joined(rng, *rng.choice(links))
        if links and rng.random() < 0.5
        else _single(rng, rng.choice(usable))
    )
    if made is None:
        return None
    text, sql = made
    return Question(text[0].upper() + text[1:], sql, tables, "")


def _said(name: str) -> str:
    return " ".join(word.lower() for word in _WORD.findall(name)) or name


def _many(name: str) -> str:
    said = _said(name)
    return said if said.endswith("s") else said[:-1] + "ies" if said.endswith("y") else said + "s"


def _one(name: str) -> str:
    said = _said(name)
    return said[:-1] if said.endswith("s") and not said.endswith("ss") else said


def _value(rng: Random) -> str:
    draw = rng.random()
    if draw < 0.3:
        return invented(rng).capitalize()
    word = rng.choice(vocabulary()[rng.choice(("nouns", "modifiers"))]).replace("_", " ")
    return word.title() if draw < 0.7 else word if draw < 0.85 else word.upper()[:3]


def _number(rng: Random) -> str:
    return str(
        rng.choice(
            (
                rng.randint(1, 20),
                rng.randint(10, 200),
                rng.randint(1000, 90000),
                rng.randint(1950, 2020),
            )
        )
    )


def _condition(rng: Random, table: _Table, prefix: str = "") -> tuple[str, str] | None:
    """A condition on a table as words after the noun, and as SQL."""
    kind = rng.random()
    if kind < 0.45 and table.texts:
        column, value = rng.choice(table.texts), _value(rng)
        words = rng.choice(
            ("whose {c} is {v}", "with {c} {v}", "that have {c} '{v}'", 'whose {c} is "{v}"')
        )
        return words.format(c=_said(column.name), v=value), f"{prefix}{column.name} = '{value}'"
    if kind < 0.55 and table.texts:
        column, value = rng.choice(table.texts), _value(rng)
        words = rng.choice(
            ("whose {c} contains '{v}'", "whose {c} includes the word {v}", "with {v} in the {c}")
        )
        return words.format(
            c=_said(column.name), v=value
        ), f"{prefix}{column.name} LIKE '%{value}%'"
    if not table.numbers:
        return None
    column = rng.choice(table.numbers)
    said, value = _said(column.name), _number(rng)
    if kind < 0.65:
        high = str(int(value) + rng.randint(1, 500))
        return (
            f"whose {said} is between {value} and {high}",
            f"{prefix}{column.name} BETWEEN {value} AND {high}",
        )
    words, mark = rng.choice(
        (
            ("whose {c} is greater than {v}", ">"), ("with {c} above {v}", ">"), ("with {c} more than {v}", ">"),
            ("whose {c} is less than {v}", "<"), ("with {c} below {v}", "<"), ("with at least {v} {c}", ">="),
            ("whose {c} is at most {v}", "<="), ("whose {c} is {v}", "="), ("whose {c} is not {v}", "!="),
        )
    )  # fmt: skip
    return words.format(c=said, v=value), f"{prefix}{column.name} {mark} {value}"


def _single(rng: Random, t: _Table) -> tuple[str, str] | None:
    columns = t.plain
    if not columns:
        return None
    many, one, table = _many(t.name), _one(t.name), t.name
    shown = rng.sample(columns, min(len(columns), rng.choice((1, 1, 1, 2, 2, 3))))
    said = " and ".join(_said(c.name) for c in shown)
    names = ", ".join(c.name for c in shown)
    ask = rng.choice(
        ("what are the", "list the", "show the", "find the", "give the", "return the", "show")
    )
    c = shown[0]
    number = rng.choice(t.numbers) if t.numbers else None
    condition = _condition(rng, t)
    if condition is not None and rng.random() < 0.2:
        second = _condition(rng, t)
        if second is not None and second[1] != condition[1]:
            word = rng.choice(("and", "or"))
            condition = (
                f"{condition[0]} {word} {second[0]}",
                f"{condition[1]} {word.upper()} {second[1]}",
            )
    kind = rng.randrange(14)
    if kind == 0:
        ask = rng.choice(
            (
                "how many {} are there?",
                "how many {} do we have?",
                "count the number of {}.",
                "what is the total number of {}?",
                "number of {}",
            )
        )
        return ask.format(many), f"SELECT COUNT(*) FROM {table}"
    if kind == 1:
        return (
            f"{ask} {said} of {rng.choice(('all', 'all the', 'each', 'every'))} {many}.",
            f"SELECT {names} FROM {table}",
        )
    if kind in (2, 3) and condition:
        return (
            f"{ask} {said} of {rng.choice(('the ', ''))}{many} {condition[0]}.",
            f"SELECT {names} FROM {table} WHERE {condition[1]}",
        )
    if kind == 4 and condition:
        return (
            f"how many {many} {condition[0]}?",
            f"SELECT COUNT(*) FROM {table} WHERE {condition[1]}",
        )
    if kind == 5 and number:
        down = rng.random() < 0.6
        words = (
            rng.choice(("from high to low", "in descending order of"))
            if down
            else rng.choice(("in ascending order of", "ordered by", "sorted by"))
        )
        tail = (
            f"sorted by {_said(number.name)} {words}"
            if words == "from high to low"
            else f"{words} {_said(number.name)}"
        )
        return (
            f"{ask} {said} of all {many} {tail}.",
            f"SELECT {names} FROM {table} ORDER BY {number.name}{' DESC' if down else ''}",
        )
    if kind == 6 and number:
        down = rng.random() < 0.6
        best = rng.choice(
            ("highest", "largest", "most", "greatest", "maximum")
            if down
            else ("lowest", "smallest", "least", "minimum")
        )
        top = rng.choice((1, 1, 1, 3, 5))
        which = f"the {one} with the {best}" if top == 1 else f"the {top} {many} with the {best}"
        return (
            f"{ask} {said} of {which} {_said(number.name)}.",
            f"SELECT {names} FROM {table} ORDER BY {number.name}{' DESC' if down else ''} LIMIT {top}",
        )
    if kind == 7 and number:
        pairs = rng.sample(
            (("average", "AVG"), ("maximum", "MAX"), ("minimum", "MIN"), ("total", "SUM")),
            rng.choice((1, 1, 2)),
        )
        words = " and ".join(word for word, _ in pairs)
        filtered = condition if condition and rng.random() < 0.4 else None
        tail = f"{many} {filtered[0]}" if filtered else f"{rng.choice(('all ', 'the ', ''))}{many}"
        return (
            f"{rng.choice(('what is', 'find', 'show', 'what are'))} the {words} {_said(number.name)} of {tail}?",
            f"SELECT {', '.join(f'{name}({number.name})' for _, name in pairs)} FROM {table}"
            + (f" WHERE {filtered[1]}" if filtered else ""),
        )
    if kind == 8:
        if rng.random() < 0.5:
            return (
                f"{ask} {rng.choice(('different', 'distinct', 'unique'))} {_said(c.name)} of {many}.",
                f"SELECT DISTINCT {c.name} FROM {table}",
            )
        return (
            f"how many {rng.choice(('different', 'distinct'))} {_many(c.name)} are there for {many}?",
            f"SELECT COUNT(DISTINCT {c.name}) FROM {table}",
        )
    group = rng.choice(t.texts) if t.texts else c
    if kind in (9, 10):
        words = rng.choice(
            (
                "how many {m} are there for each {g}?",
                "show the number of {m} for each {g}.",
                "for each {g}, how many {m} are there?",
                "what is the number of {m} in each {g}?",
                "show each {g} and the number of {m}.",
            )
        )
        if number and number is not group and rng.random() < 0.3:
            word, name = rng.choice(
                (("average", "AVG"), ("maximum", "MAX"), ("total", "SUM"), ("minimum", "MIN"))
            )
            return (
                f"what is the {word} {_said(number.name)} of {many} for each {_said(group.name)}?",
                f"SELECT {group.name}, {name}({number.name}) FROM {table} GROUP BY {group.name}",
            )
        return words.format(
            m=many, g=_said(group.name)
        ), f"SELECT {group.name}, COUNT(*) FROM {table} GROUP BY {group.name}"
    if kind == 11:
        if rng.random() < 0.5:
            k = rng.randint(1, 5)
            words, mark = rng.choice((("more than", ">"), ("at least", ">="), ("fewer than", "<")))
            return (
                f"{ask} {_said(group.name)} with {words} {k} {many}.",
                f"SELECT {group.name} FROM {table} GROUP BY {group.name} HAVING COUNT(*) {mark} {k}",
            )
        words, order = rng.choice(
            (("most common", " DESC"), ("most frequent", " DESC"), ("least common", ""))
        )
        return (
            f"what is the {words} {_said(group.name)} of {many}?",
            f"SELECT {group.name} FROM {table} GROUP BY {group.name} ORDER BY COUNT(*){order} LIMIT 1",
        )
    if kind == 12 and number:
        words, mark = rng.choice(
            (("above", ">"), ("higher than", ">"), ("below", "<"), ("less than", "<"))
        )
        return (
            f"{ask} {said} of {many} whose {_said(number.name)} is {words} the average.",
            f"SELECT {names} FROM {table} WHERE {number.name} {mark} (SELECT AVG({number.name}) FROM {table})",
        )
    if kind == 13 and condition:
        second = _condition(rng, t)
        if second is None or second[1] == condition[1]:
            return None
        words, operator = rng.choice(
            (
                ("both {m} {a} and {m} {b}", "INTERSECT"),
                ("{m} {a} but not of those {b}", "EXCEPT"),
                ("{m} {a} or {m} {b}", "UNION"),
            )
        )
        tail = words.format(m=many, a=condition[0], b=second[0])
        return (
            f"{ask} {_said(c.name)} of {tail}.",
            f"SELECT {c.name} FROM {table} WHERE {condition[1]} {operator} "
            f"SELECT {c.name} FROM {table} WHERE {second[1]}",
        )
    return None


def _joined(
    rng: Random, child: _Table, key: Column, parent: _Table, target: Column
) -> tuple[str, str] | None:
    if not parent.plain:
        return None
    label = rng.choice(parent.plain)
    children, parents, one = _many(child.name), _many(parent.name), _one(parent.name)
    first, second = rng.choice(((parent, child), (child, parent)))
    up, down = ("T1", "T2") if first is parent else ("T2", "T1")
    left, right = (target.name, key.name) if first is parent else (key.name, target.name)
    source = f"FROM {first.name} AS T1 JOIN {second.name} AS T2 ON T1.{left} = T2.{right}"
    ask = rng.choice(("what are the", "list the", "show the", "find the", "give the", "return the"))
    kind = rng.randrange(8)
    if kind == 0 and child.plain:
        other = rng.choice(child.plain)
        return (
            f"{ask} {_said(other.name)} of {children} and the {_said(label.name)} of their {parents}.",
            f"SELECT {down}.{other.name}, {up}.{label.name} {source}",
        )
    if kind in (1, 2):
        condition = _condition(rng, child, f"{down}.")
        if condition is None:
            return None
        distinct = rng.choice(("", "DISTINCT "))
        return (
            f"{ask} {distinct.lower()}{_said(label.name)} of {parents} that have {children} {condition[0]}.",
            f"SELECT {distinct}{up}.{label.name} {source} WHERE {condition[1]}",
        )
    if kind == 3 and child.plain:
        condition = _condition(rng, parent, f"{up}.")
        if condition is None:
            return None
        if rng.random() < 0.4:
            return (
                f"how many {children} belong to {parents} {condition[0]}?",
                f"SELECT COUNT(*) {source} WHERE {condition[1]}",
            )
        other = rng.choice(child.plain)
        return (
            f"{ask} {_said(other.name)} of {children} of the {parents} {condition[0]}.",
            f"SELECT {down}.{other.name} {source} WHERE {condition[1]}",
        )
    if kind == 4:
        words = rng.choice(
            (
                "show the {l} of each {p} and the number of {c}.",
                "for each {p}, show its {l} and how many {c} it has.",
                "what is the {l} of every {p}, and how many {c} does it have?",
            )
        )
        return words.format(
            l=_said(label.name), p=one, c=children
        ), f"SELECT {up}.{label.name}, COUNT(*) {source} GROUP BY {up}.{target.name}"
    if kind == 5:
        words, order = rng.choice(
            (("the most", " DESC"), ("the largest number of", " DESC"), ("the fewest", ""))
        )
        return (
            f"what is the {_said(label.name)} of the {one} with {words} {children}?",
            f"SELECT {up}.{label.name} {source} GROUP BY {up}.{target.name} ORDER BY COUNT(*){order} LIMIT 1",
        )
    if kind == 6:
        k = rng.randint(1, 5)
        words, mark = rng.choice((("more than", ">"), ("at least", ">=")))
        return (
            f"{ask} {_said(label.name)} of {parents} with {words} {k} {children}.",
            f"SELECT {up}.{label.name} {source} GROUP BY {up}.{target.name} HAVING COUNT(*) {mark} {k}",
        )
    words = rng.choice(("do not have any {c}", "have no {c}", "are without {c}"))
    return (
        f"{ask} {_said(label.name)} of {parents} that {words.format(c=children)}.",
        f"SELECT {label.name} FROM {parent.name} WHERE {target.name} NOT IN (SELECT {key.name} FROM {child.name})",
    )

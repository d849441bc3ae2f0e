"""Other schemas for the same question: names changed, tables and columns left out, added and put in another order.

A few thousand questions over a hundred databases would be learnt by heart; what is to be learnt is to find names in
any schema. A word is changed everywhere at once, in schema, question, query and result, so the query stays right. Only
words are changed that the question says, or that the query does not need: the others are found by meaning.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random

from harness_sql.sqlite.schema import Column, compact
from recipes.pocket_sql.worlds import invented, reserved, vocabulary
from recipes.spider_sql.questions import Question, Tables, Wrong

_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_KEPT = frozenset(
    """the and for with from all each how many what which who whose name names number count date year first last max
    min total average avg sum type code select distinct join where not like between group order having limit union
    except intersect desc asc text integer int real bool varchar char key table value list show find give than more
    less most least""".split()
)
SCHEMA_CHARS = (700, 1500)
"""Range of the longest schema text; a task's own limit should lie inside."""


def vary(question: Question, others: Sequence[Question], rng: Random) -> tuple[Question, str]:
    """A question over another schema, and the schema's text.

    Args:
        others: Questions whose tables may be added.
    """
    used = _used(question)
    tables = _choose(question, used, others, rng)
    if rng.random() < 0.75:
        question, tables = _rename(question, tables, rng)
    if rng.random() < 0.15:
        question, tables = _map(question, tables, str.lower)
    return question, _text(tables, _used(replace(question, tables=tables)), rng)


def _used(question: Question) -> frozenset[str]:
    """Names in the query, in small letters."""
    return frozenset(re.findall(r"\w+", re.sub(r"'(?:[^']|'')*'", "", question.sql).lower()))


def _choose(
    question: Question, used: frozenset[str], others: Sequence[Question], rng: Random
) -> Tables:
    """Some of the tables and columns: all that the query needs, most of the rest, at times some of elsewhere."""
    keep = rng.choice((1.0, 1.0, 0.8, 0.5))
    lean = rng.random() < 0.2
    chosen: Tables = {}
    for name, columns in question.tables.items():
        needed = name.lower() in used
        if not needed and rng.random() > keep:
            continue
        kept = [
            c
            for c in columns
            if not lean or c.key or c.target or c.name.lower() in used or rng.random() < 0.7
        ]
        chosen[name] = kept or columns
    if rng.random() < 0.3 and others:
        taken = {name.lower() for name in question.tables}
        for _ in range(rng.randint(1, 3)):
            name, columns = rng.choice(list(rng.choice(others).tables.items()))
            if name.lower() not in taken:
                taken.add(name.lower())
                chosen[name] = columns
    order = list(chosen)
    if rng.random() < 0.4:
        rng.shuffle(order)
    shuffled = rng.random() < 0.15
    return {
        name: rng.sample(chosen[name], len(chosen[name])) if shuffled else chosen[name]
        for name in order
    }


def _rename(question: Question, tables: Tables, rng: Random) -> tuple[Question, Tables]:
    said = {_single(word) for word in _words(question.text)}
    needed = {_single(word) for name in _used(question) for word in _words(name)}
    share = rng.choice((0.3, 0.6, 0.9))
    renamed: dict[str, str] = {}
    for name in dict.fromkeys([*tables, *(c.name for columns in tables.values() for c in columns)]):
        for word in map(_single, _words(name)):
            free = word in said or word not in needed
            if (
                word not in renamed
                and free
                and len(word) > 2
                and word not in _KEPT
                and rng.random() < share
            ):
                renamed[word] = _new_word(rng)

    def change(text: str) -> str:
        return _WORD.sub(lambda match: _changed(match.group(), renamed), text)

    return _map(question, tables, change)


def _map(
    question: Question, tables: Tables, change: Callable[[str], str]
) -> tuple[Question, Tables]:
    """`change` applied to every name; a question whose names would collide stays as it is."""
    new: Tables = {}
    for name, columns in tables.items():
        changed = [replace(c, name=change(c.name), target=change(c.target)) for c in columns]
        if len({c.name.lower() for c in changed}) < len(columns):
            return question, tables
        new[change(name)] = changed
    names = {name.lower() for name in new}
    if len(names) < len(tables):
        return question, tables
    known = {name.lower() for name in tables} | {
        c.name.lower() for columns in tables.values() for c in columns
    }
    spoken = (lambda text: text) if change is str.lower else change

    def query(sql: str) -> str:
        pieces = re.split(r"('(?:[^']|'')*')", sql)
        for place in range(0, len(pieces), 2):
            pieces[place] = re.sub(
                r"[A-Za-z_]\w*",
                lambda m: change(m.group()) if m.group().lower() in known else m.group(),
                pieces[place],
            )
        return "".join(pieces)

    def result(shown: str) -> str:
        head, newline, rest = shown.partition("\n")
        return query(head) + newline + rest

    wrong = tuple(Wrong(query(w.sql), result(w.shown), w.remark) for w in question.wrong)
    return Question(
        spoken(question.text), query(question.sql), new, result(question.shown), wrong
    ), new


def _text(tables: Tables, used: frozenset[str], rng: Random) -> str:
    """The compact schema text, without as many unneeded tables from the end as it takes to be short enough."""
    limit = rng.randint(*SCHEMA_CHARS)
    names = {name.lower() for name in tables}
    lines = {
        name: compact(name, [_pointing(c, names) for c in columns])
        for name, columns in tables.items()
    }
    for name in reversed(list(lines)):
        if sum(map(len, lines.values())) + len(lines) <= limit:
            break
        if name.lower() not in used:
            del lines[name]
    return "\n".join(lines.values())


def _pointing(column: Column, names: set[str]) -> Column:
    return column if column.target.split(".")[0].lower() in names else replace(column, target="")


def _words(text: str) -> list[str]:
    return [word.lower() for word in _WORD.findall(text)]


def _single(word: str) -> str:
    return word[:-1] if len(word) > 3 and word.endswith("s") and not word.endswith("ss") else word


def _new_word(rng: Random) -> str:
    """A word that can be a name without quotes."""
    if rng.random() < 0.3:
        return invented(rng)
    pool = vocabulary()[rng.choice(("nouns", "nouns", "numbers", "modifiers"))]
    word = rng.choice(pool).split("_")[0].lower()
    return word if word not in reserved() and word not in _KEPT else _new_word(rng)


def _changed(word: str, renamed: dict[str, str]) -> str:
    low = word.lower()
    single = _single(low)
    if single not in renamed:
        return word
    new = renamed[single] + ("s" if low != single else "")
    return (
        new.upper()
        if word.isupper() and len(word) > 1
        else new.capitalize()
        if word[0].isupper()
        else new
    )

"""Questions about linked tables and sets. T1 is the table that refers, T2 the one referred to."""

from __future__ import annotations

from random import Random

from recipes.pocket.domain import Column, Table, literal, pluralize
from recipes.pocket.grammar import AGGREGATES, any_table
from recipes.pocket.phrasing import (
    COUNTS,
    compares,
    condition,
    equals,
    numbers,
    picks,
    quoted,
    request,
)
from recipes.pocket.world import Item, World

Link = tuple[Table, Column, Table]


def any_link(world: World, rng: Random) -> Link:
    return rng.choice(world.links())


def joined(link: Link) -> str:
    """The two tables of a link, joined."""
    child, key, parent = link
    return f"{child.name} AS T1 JOIN {parent.name} AS T2 ON T1.{key.name} = T2.{parent.pk.name}"


def of_parent(world: World, rng: Random, link: Link) -> tuple[str, str] | None:
    """The children of some parents: the plural noun with its condition, and the condition's SQL."""
    child, key, parent = link
    if rng.random() < 0.5:
        row = world.rows[parent.name][int(rng.choice(world.values(child, key))) - 1]
        value = row[parent.columns.index(parent.label)]
        words = rng.choice(
            (
                f"{child.plural} of the {parent.singular} {quoted(value)}",
                f"{child.plural} that belong to the {parent.singular} {quoted(value)}",
            )
        )
        return words, f"T2.{parent.label.name} = {literal(value)}"
    found = condition(world, rng, parent, "T2.", bounds=False)
    if found is None:
        return None
    words = rng.choice(
        (
            f"{child.plural} whose {parent.singular}'s {found.words}",
            f"{child.plural} of {parent.plural} whose {found.words}",
        )
    )
    return words, found.sql


def pairs(world: World, rng: Random) -> Item | None:
    link = any_link(world, rng)
    child, _, parent = link
    left, right = picks(rng, child, most=1)[0], picks(rng, parent, most=1)[0]
    question = rng.choice(
        (
            f"Show the {left.phrase} of each {child.singular} and the {right.phrase} of its {parent.singular}.",
            f"List the {left.phrase} of every {child.singular} with the {right.phrase} of its {parent.singular}.",
            f"For each {child.singular}, give its {left.phrase} and the {right.phrase} of its {parent.singular}.",
        )
    )
    return Item(
        "pairs", "medium", question, f"SELECT T1.{left.name}, T2.{right.name} FROM {joined(link)}"
    )


def children_of(world: World, rng: Random) -> Item | None:
    """Children of certain parents; the slip is to join and forget the condition."""
    link = any_link(world, rng)
    scope = of_parent(world, rng, link)
    if scope is None:
        return None
    noun, where = scope
    if rng.random() < 0.3:
        question, head = rng.choice(COUNTS).format(n=noun), "COUNT(*)"
    else:
        shown = picks(rng, link[0])
        question = request(rng, shown, f"the {noun}" if rng.random() < 0.5 else noun)
        head = ", ".join(f"T1.{c.name}" for c in shown)
    short = f"SELECT {head} FROM {joined(link)}"
    return Item(
        "children_of", "medium", question, f"{short} WHERE {where}", {"join_without_filter": short}
    )


def aggregate_of(world: World, rng: Random) -> Item | None:
    link = any_link(world, rng)
    columns = numbers(link[0], years=False)
    scope = of_parent(world, rng, link)
    if not columns or scope is None:
        return None
    column = rng.choice(columns)
    word, function = rng.choice(AGGREGATES)
    noun, where = scope
    question = rng.choice(("What is the {w} {c} of the {n}?", "Find the {w} {c} of {n}."))
    question = question.format(w=word, c=column.phrase, n=noun)
    short = f"SELECT {function}(T1.{column.name}) FROM {joined(link)}"
    return Item(
        "aggregate_of", "hard", question, f"{short} WHERE {where}", {"join_without_filter": short}
    )


def parent_of(world: World, rng: Random) -> Item | None:
    link = any_link(world, rng)
    child, _, parent = link
    value = rng.choice(world.values(child, child.label))
    column = picks(rng, parent, most=1)[0]
    question = rng.choice(
        (
            f"What is the {column.phrase} of the {parent.singular} of the {child.singular} {quoted(value)}?",
            f"Give the {column.phrase} of the {parent.singular} that the {child.singular} {quoted(value)} belongs to.",
        )
    )
    gold = f"SELECT T2.{column.name} FROM {joined(link)} WHERE T1.{child.label.name} = {literal(value)}"
    return Item("parent_of", "medium", question, gold)


def count_children(world: World, rng: Random) -> Item | None:
    link = any_link(world, rng)
    child, _, parent = link
    question = rng.choice(
        (
            f"For each {parent.singular} that has {child.plural}, "
            f"show its {parent.label.phrase} and the number of its {child.plural}.",
            f"Show the {parent.label.phrase} of each {parent.singular} with {child.plural} and how many it has.",
        )
    )
    gold = (
        f"SELECT T2.{parent.label.name}, COUNT(*) FROM {joined(link)} GROUP BY T2.{parent.pk.name}"
    )
    return Item("count_children", "medium", question, gold)


def most_children(world: World, rng: Random) -> Item | None:
    """The parent with the most children; the slip is to take the one with the fewest."""
    link = any_link(world, rng)
    child, _, parent = link
    shown = picks(rng, parent, most=1)[0]
    question = rng.choice(
        (
            f"Which {parent.singular} has the most {child.plural}? Give its {shown.phrase}.",
            f"What is the {shown.phrase} of the {parent.singular} with the most {child.plural}?",
            f"Find the {shown.phrase} of the {parent.singular} with the largest number of {child.plural}.",
        )
    )
    low = f"SELECT T2.{shown.name} FROM {joined(link)} GROUP BY T2.{parent.pk.name} ORDER BY COUNT(*) LIMIT 1"
    return Item(
        "most_children",
        "hard",
        question,
        low.replace(" LIMIT", " DESC LIMIT"),
        {"descending_lost": low},
    )


def having_children(world: World, rng: Random) -> Item | None:
    link = any_link(world, rng)
    child, key, parent = link
    keys = world.values(child, key)
    size = keys.count(rng.choice(keys))
    loose = rng.random() < 0.7
    words, operator = ("at least", ">=") if loose else ("more than", ">")
    if not loose:
        size -= 1
    if size < 1:
        return None
    noun = child.plural if size > 1 else child.singular
    shown = picks(rng, parent, most=1)
    where, scope = "", f"{parent.plural} with {words} {size} {noun}"
    level = "hard"
    if rng.random() < 0.3:
        found = equals(world, rng, child, "T1.")
        if found is None:
            return None
        scope, where, level = f"{scope} whose {found.words}", f" WHERE {found.sql}", "extra"
    head = f"SELECT T2.{shown[0].name} FROM {joined(link)}{where} GROUP BY T2.{parent.pk.name} HAVING COUNT(*)"
    mistakes = {"strict_bound": f"{head} > {size}"} if loose else {}
    return Item(
        "having_children", level, request(rng, shown, scope), f"{head} {operator} {size}", mistakes
    )


def childless(world: World, rng: Random) -> Item | None:
    """Parents without children, or with; the slip is to lose the negation."""
    link = any_link(world, rng)
    child, key, parent = link
    shown = picks(rng, parent)
    without = rng.random() < 0.75
    words = rng.choice((f"that have no {child.plural}", f"without any {child.plural}")
                       if without else (f"that have at least one {child.singular}",))  # fmt: skip
    head = f"SELECT {', '.join(c.name for c in shown)} FROM {parent.name} WHERE {parent.pk.name}"
    inner = f"IN (SELECT {key.name} FROM {child.name})"
    gold = f"{head} NOT {inner}" if without else f"{head} {inner}"
    mistakes = {"negation_lost": f"{head} {inner}"} if without else {}
    return Item(
        "childless", "hard", request(rng, shown, f"the {parent.plural} {words}"), gold, mistakes
    )


def both_kinds(world: World, rng: Random) -> Item | None:
    """Values found on both sides of two conditions; the slip is to accept either."""
    table = any_table(world, rng)
    columns = numbers(table)
    if not table.of("cat") or not columns:
        return None
    key, column = rng.choice(table.of("cat")), rng.choice(columns)
    first = compares(world, rng, table, ">", column=column)
    second = compares(world, rng, table, "<", column=column)
    assert first is not None and second is not None
    question = rng.choice(
        (
            f"Which {pluralize(key.phrase)} have both {table.plural} whose {first.words} "
            f"and {table.plural} whose {second.words}?",
            f"List the {pluralize(key.phrase)} that have {table.plural} whose {first.words} "
            f"as well as {table.plural} whose {second.words}.",
        )
    )
    left = f"SELECT {key.name} FROM {table.name} WHERE {first.sql}"
    right = f"SELECT {key.name} FROM {table.name} WHERE {second.sql}"
    mistakes = {"either_for_both": f"{left} UNION {right}"}
    return Item("both_kinds", "extra", question, f"{left} INTERSECT {right}", mistakes)


def but_none(world: World, rng: Random) -> Item | None:
    table = any_table(world, rng)
    found = compares(world, rng, table, "> <")
    if not table.of("cat") or found is None:
        return None
    key = rng.choice(table.of("cat"))
    question = rng.choice(
        (
            f"Which {pluralize(key.phrase)} have no {table.singular} whose {found.words}?",
            f"List the {pluralize(key.phrase)} of the {table.plural}, "
            f"except those with a {table.singular} whose {found.words}.",
        )
    )
    gold = f"SELECT {key.name} FROM {table.name} EXCEPT SELECT {key.name} FROM {table.name} WHERE {found.sql}"
    return Item("but_none", "extra", question, gold)


def all_labels(world: World, rng: Random) -> Item | None:
    left, right = rng.sample(world.domain.tables, 2)
    words = f"the {left.label.phrase} of all {left.plural} and the {right.label.phrase} of all {right.plural}"
    question = rng.choice((f"Give {words} in one list.", f"Show {words} in a single column."))
    gold = f"SELECT {left.label.name} FROM {left.name} UNION SELECT {right.label.name} FROM {right.name}"
    return Item("all_labels", "extra", question, gold)


def two_parents(world: World, rng: Random) -> Item | None:
    """Three tables: along a chain, or a child with two parents."""
    by_child: dict[str, list[Link]] = {}
    for link in world.links():
        by_child.setdefault(link[0].name, []).append(link)
    paths = []
    for child, key, parent in world.links():
        for _, upper_key, upper in by_child.get(parent.name, []):
            paths.append((child, upper, f"{joined((child, key, parent))} JOIN {upper.name} AS T3 "
                          f"ON T2.{upper_key.name} = T3.{upper.pk.name}", parent))  # fmt: skip
    if not paths:
        return None
    child, upper, tables, middle = rng.choice(paths)
    column, shown = picks(rng, upper, most=1)[0], picks(rng, child, most=1)[0]
    question = rng.choice(
        (
            f"Show the {shown.phrase} of each {child.singular} and the {column.phrase} of "
            f"the {upper.singular} of its {middle.singular}.",
            f"List the {shown.phrase} of every {child.singular} with the {column.phrase} of "
            f"its {middle.singular}'s {upper.singular}.",
        )
    )
    return Item(
        "two_parents", "extra", question, f"SELECT T1.{shown.name}, T3.{column.name} FROM {tables}"
    )

"""Questions about one table. Each template draws one question with its gold, or nothing if the table lacks a part."""

from __future__ import annotations

from random import Random

from recipes.pocket.domain import Table, literal, pluralize
from recipes.pocket.phrasing import (
    COUNTS,
    NUMBER_WORDS,
    compares,
    condition,
    equals,
    listing,
    numbers,
    picks,
    quoted,
    request,
    superlative,
    whose,
)
from recipes.pocket.world import Item, World

AGGREGATES = (
    ("average", "AVG"),
    ("maximum", "MAX"),
    ("minimum", "MIN"),
    ("highest", "MAX"),
    ("lowest", "MIN"),
)


def any_table(world: World, rng: Random) -> Table:
    return rng.choice(world.domain.tables)


def project(world: World, rng: Random) -> Item | None:
    table = any_table(world, rng)
    columns = picks(rng, table)
    noun = rng.choice((f"all {table.plural}", f"every {table.singular}", f"each {table.singular}"))
    gold = f"SELECT {', '.join(c.name for c in columns)} FROM {table.name}"
    return Item("project", "easy", request(rng, columns, noun), gold)


def count_all(world: World, rng: Random) -> Item | None:
    table = any_table(world, rng)
    question = rng.choice(COUNTS).format(n=table.plural)
    return Item("count_all", "easy", question, f"SELECT COUNT(*) FROM {table.name}")


def different(world: World, rng: Random) -> Item | None:
    table = any_table(world, rng)
    if not table.of("cat"):
        return None
    column = rng.choice(table.of("cat"))
    question = rng.choice(
        (
            f"What are the different {pluralize(column.phrase)} of the {table.plural}?",
            f"List the distinct {pluralize(column.phrase)} of all {table.plural}.",
            f"Show every different {column.phrase} of the {table.plural}.",
        )
    )
    return Item("different", "easy", question, f"SELECT DISTINCT {column.name} FROM {table.name}")


def lookup(world: World, rng: Random) -> Item | None:
    table = any_table(world, rng)
    column = rng.choice([c for c in table.columns if c.kind not in ("pk", "fk", "label")])
    value = rng.choice(world.values(table, table.label))
    question = rng.choice(
        (
            f"What is the {column.phrase} of the {table.singular} {quoted(value)}?",
            f"Give the {column.phrase} of the {table.singular} whose {table.label.phrase} is {quoted(value)}.",
        )
    )
    gold = f"SELECT {column.name} FROM {table.name} WHERE {table.label.name} = {literal(value)}"
    return Item("lookup", "easy", question, gold)


def filter_equal(world: World, rng: Random) -> Item | None:
    table = any_table(world, rng)
    found = equals(world, rng, table)
    if found is None:
        return None
    columns = picks(rng, table)
    gold = f"SELECT {', '.join(c.name for c in columns)} FROM {table.name} WHERE {found.sql}"
    return Item("filter_equal", "easy", request(rng, columns, whose(rng, table, found.words)), gold)


def filter_bound(world: World, rng: Random) -> Item | None:
    """Mostly loose bounds: the slip is to leave out the bound itself."""
    table = any_table(world, rng)
    operators = ">= <=" if rng.random() < 0.75 else "> <"
    found = compares(world, rng, table, operators)
    if found is None:
        return None
    noun = whose(rng, table, found.words)
    if rng.random() < 0.35:
        question, head = rng.choice(COUNTS).format(n=noun), "COUNT(*)"
    else:
        columns = picks(rng, table)
        question, head = request(rng, columns, noun), ", ".join(c.name for c in columns)
    gold = f"SELECT {head} FROM {table.name} WHERE {found.sql}"
    mistakes = (
        {"strict_bound": f"SELECT {head} FROM {table.name} WHERE {found.slip}"}
        if found.slip
        else {}
    )
    return Item("filter_bound", "easy", question, gold, mistakes)


def count_where(world: World, rng: Random) -> Item | None:
    table = any_table(world, rng)
    found = condition(world, rng, table, bounds=False)
    if found is None:
        return None
    question = rng.choice(COUNTS).format(n=whose(rng, table, found.words))
    return Item(
        "count_where", "easy", question, f"SELECT COUNT(*) FROM {table.name} WHERE {found.sql}"
    )


def aggregate(world: World, rng: Random) -> Item | None:
    """An aggregate of all rows or of some; a total invites counting instead."""
    table = any_table(world, rng)
    columns = numbers(table, years=False)
    if not columns:
        return None
    column = rng.choice(columns)
    total = rng.random() < 0.6
    word, function = ("total", "SUM") if total else rng.choice(AGGREGATES)
    noun, where = f"all {table.plural}", ""
    if rng.random() < 0.5:
        found = equals(world, rng, table)
        if found is None:
            return None
        noun, where = whose(rng, table, found.words), f" WHERE {found.sql}"
    question = rng.choice(
        ("What is the {w} {c} of {n}?", "Find the {w} {c} of {n}.", "Give the {w} {c} of {n}.")
    )
    question = question.format(w=word, c=column.phrase, n=noun)
    gold = f"SELECT {function}({column.name}) FROM {table.name}{where}"
    mistakes = {"count_for_total": gold.replace("SUM(", "COUNT(")} if total else {}
    return Item("aggregate", "medium" if where else "easy", question, gold, mistakes)


def two_conditions(world: World, rng: Random) -> Item | None:
    """Two conditions joined by `and` or `or`; the slip is to forget the second."""
    table = any_table(world, rng)
    first, second = equals(world, rng, table), compares(world, rng, table, "> <")
    if first is None or second is None:
        return None
    if rng.random() < 0.4:
        first, second = second, first
    word = rng.choice(("and", "or"))
    noun = whose(rng, table, f"{first.words} {word} {second.words}")
    if rng.random() < 0.3:
        question, head = rng.choice(COUNTS).format(n=noun), "COUNT(*)"
    else:
        columns = picks(rng, table, most=1)
        question, head = request(rng, columns, noun), ", ".join(c.name for c in columns)
    short = f"SELECT {head} FROM {table.name} WHERE {first.sql}"
    gold = f"{short} {word.upper()} {second.sql}"
    return Item("two_conditions", "medium", question, gold, {"second_condition_lost": short})


def between(world: World, rng: Random) -> Item | None:
    table = any_table(world, rng)
    columns = numbers(table)
    if not columns:
        return None
    column = rng.choice(columns)
    ordered = sorted(set(world.values(table, column)))
    if len(ordered) < 5:
        return None
    low = rng.randrange(0, len(ordered) - 3)
    high = rng.randrange(low + 2, len(ordered))
    shown = picks(rng, table, most=1)
    words = f"{column.phrase} is between {ordered[low]} and {ordered[high]}"
    gold = f"SELECT {shown[0].name} FROM {table.name} WHERE {column.name} BETWEEN {ordered[low]} AND {ordered[high]}"
    return Item("between", "medium", request(rng, shown, whose(rng, table, words)), gold)


def sort(world: World, rng: Random) -> Item | None:
    """Sorted lists, mostly descending; the slip is to sort ascending."""
    table = any_table(world, rng)
    columns = numbers(table)
    if not columns:
        return None
    column = rng.choice(columns)
    shown = picks(rng, table)
    down = rng.random() < 0.7
    words = rng.choice(
        (
            "in descending order of {c}",
            "sorted by {c} from highest to lowest",
            "ordered by {c} descending",
        )
        if down
        else (
            "in ascending order of {c}",
            "sorted by {c} from lowest to highest",
            "ordered by {c} ascending",
        )
    ).format(c=column.phrase)
    head = ", ".join(c.name for c in shown)
    question = rng.choice(
        (
            "List the {h} of all {p} {w}.",
            "Show the {h} of all {p} {w}.",
            "Give the {h} of the {p} {w}.",
        )
    )
    question = question.format(h=listing([c.phrase for c in shown]), p=table.plural, w=words)
    rising = f"SELECT {head} FROM {table.name} ORDER BY {column.name}"
    if not down:
        return Item("sort", "easy", question, rising)
    return Item("sort", "easy", question, f"{rising} DESC", {"descending_lost": rising})


def first_one(world: World, rng: Random) -> Item | None:
    """The extreme row, mostly the highest; the slip is to take the other end."""
    table = any_table(world, rng)
    columns = numbers(table)
    if not columns:
        return None
    column = rng.choice(columns)
    shown = picks(rng, table)
    most = rng.random() < 0.7
    where = ""
    scope = ""
    if rng.random() < 0.35:
        found = equals(world, rng, table)
        if found is None:
            return None
        scope, where = f"Among the {whose(rng, table, found.words)}, ", f" WHERE {found.sql}"
    noun = "the " + superlative(rng, table, column, most)
    question = request(rng, shown, noun)
    if scope:
        question = scope + question[0].lower() + question[1:]
    head = ", ".join(c.name for c in shown)
    low = f"SELECT {head} FROM {table.name}{where} ORDER BY {column.name} LIMIT 1"
    level = "hard" if where else "medium"
    if not most:
        return Item("first_one", level, question, low)
    return Item(
        "first_one", level, question, low.replace(" LIMIT", " DESC LIMIT"), {"descending_lost": low}
    )


def first_few(world: World, rng: Random) -> Item | None:
    """The first two to five rows; the slip is to return them all."""
    table = any_table(world, rng)
    columns = numbers(table)
    if not columns:
        return None
    column = rng.choice(columns)
    shown = picks(rng, table)
    count = rng.randint(2, 5)
    most = rng.random() < 0.5
    words = ("latest", "earliest") if column.kind == "year" else ("highest", "lowest")
    number = rng.choice((str(count), NUMBER_WORDS[count]))
    noun = f"the {number} {table.plural} with the {words[not most]} {column.phrase}"
    whole = f"SELECT {', '.join(c.name for c in shown)} FROM {table.name} ORDER BY {column.name}"
    whole += " DESC" if most else ""
    return Item(
        "first_few",
        "medium",
        request(rng, shown, noun),
        f"{whole} LIMIT {count}",
        {"limit_lost": whole},
    )


def group_count(world: World, rng: Random) -> Item | None:
    table = any_table(world, rng)
    if not table.of("cat"):
        return None
    column = rng.choice(table.of("cat"))
    question = rng.choice(
        (
            f"How many {table.plural} are there for each {column.phrase}?",
            f"Show each {column.phrase} and the number of its {table.plural}.",
            f"For each {column.phrase}, count the {table.plural}.",
        )
    )
    if question.startswith("How many"):
        question += f" Show the {column.phrase} and the number."
    elif question.startswith("For each"):
        question += f" Show the {column.phrase} too."
    gold = f"SELECT {column.name}, COUNT(*) FROM {table.name} GROUP BY {column.name}"
    return Item("group_count", "medium", question, gold)


def group_aggregate(world: World, rng: Random) -> Item | None:
    table = any_table(world, rng)
    columns = numbers(table, years=False)
    if not table.of("cat") or not columns:
        return None
    key, column = rng.choice(table.of("cat")), rng.choice(columns)
    total = rng.random() < 0.5
    word, function = ("total", "SUM") if total else rng.choice(AGGREGATES)
    question = rng.choice(
        (
            f"Show each {key.phrase} and the {word} {column.phrase} of its {table.plural}.",
            f"For each {key.phrase}, show the {key.phrase} and the {word} {column.phrase} of the {table.plural}.",
        )
    )
    gold = f"SELECT {key.name}, {function}({column.name}) FROM {table.name} GROUP BY {key.name}"
    mistakes = {"count_for_total": gold.replace("SUM(", "COUNT(")} if total else {}
    return Item("group_aggregate", "medium", question, gold, mistakes)


def having(world: World, rng: Random) -> Item | None:
    """Groups of some size, mostly with a loose bound."""
    table = any_table(world, rng)
    if not table.of("cat"):
        return None
    column = rng.choice(table.of("cat"))
    values = world.values(table, column)
    size = values.count(rng.choice(values))
    loose = rng.random() < 0.7
    words, operator = ("at least", ">=") if loose else ("more than", ">")
    if not loose:
        size -= 1
    if size < 1:
        return None
    noun = f"{table.plural if size > 1 else table.singular}"
    question = rng.choice(
        (
            f"Which {pluralize(column.phrase)} have {words} {size} {noun}?",
            f"List every {column.phrase} with {words} {size} {noun}.",
            f"Show the {pluralize(column.phrase)} that have {words} {size} {noun}.",
        )
    )
    head = f"SELECT {column.name} FROM {table.name} GROUP BY {column.name} HAVING COUNT(*)"
    mistakes = {"strict_bound": f"{head} > {size}"} if loose else {}
    return Item("having", "medium", question, f"{head} {operator} {size}", mistakes)


def versus_average(world: World, rng: Random) -> Item | None:
    """Above or below the average; the slip is to look on the wrong side of it."""
    table = any_table(world, rng)
    columns = numbers(table, years=False)
    if not columns:
        return None
    column = rng.choice(columns)
    shown = picks(rng, table)
    above = rng.random() < 0.75
    words = rng.choice(("above the average", "higher than the average", "greater than the average")
                       if above else ("below the average", "lower than the average"))  # fmt: skip
    noun = whose(rng, table, f"{column.phrase} is {words}")
    head = f"SELECT {', '.join(c.name for c in shown)} FROM {table.name} WHERE {column.name}"
    inner = f"(SELECT AVG({column.name}) FROM {table.name})"
    gold = f"{head} {'>' if above else '<'} {inner}"
    mistakes = {"wrong_side_of_average": f"{head} < {inner}"} if above else {}
    return Item("versus_average", "hard", request(rng, shown, noun), gold, mistakes)


def same_as(world: World, rng: Random) -> Item | None:
    table = any_table(world, rng)
    if not table.of("cat"):
        return None
    column = rng.choice(table.of("cat"))
    value = rng.choice(world.values(table, table.label))
    shown = picks(rng, table, most=1)
    noun = f"all {table.plural} with the same {column.phrase} as {quoted(value)}"
    inner = f"(SELECT {column.name} FROM {table.name} WHERE {table.label.name} = {literal(value)})"
    gold = f"SELECT {shown[0].name} FROM {table.name} WHERE {column.name} = {inner}"
    return Item("same_as", "hard", request(rng, shown, noun), gold)

"""The questions of `pocket_split`: two small databases of one theme, and questions over both.

Database `a` holds people or things, database `b` their actions; every question needs both. Each
question has a plan: the task of each worker, its query, and its report.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from random import Random

NAMES = (
    *(
        "Ada",
        "Ben",
        "Cleo",
        "Dan",
        "Eva",
        "Finn",
        "Gina",
        "Hugo",
        "Ida",
        "Jon",
        "Kim",
        "Lea",
        "Max",
        "Nora",
        "Otto",
    ),
    *(
        "Pia",
        "Quinn",
        "Rosa",
        "Sam",
        "Tess",
        "Uma",
        "Vera",
        "Will",
        "Yara",
        "Zoe",
        "Alma",
        "Bruno",
        "Carla",
        "Dora",
    ),
)
YEARS = (2021, 2022, 2023, 2024)


@dataclass(frozen=True, slots=True)
class Theme:
    """The theme of a pair of databases.

    Attributes:
        who: Table of `a`, its singular, and the column that groups its rows, with the column's
            values.
        what: Table of `b`, its singular, its key to `a`, and the column of kinds, with the column's
            values.
        amount: The column of `b` that is summed.
    """

    who: str
    one: str
    group: str
    groups: tuple[str, ...]
    what: str
    act: str
    key: str
    kind: str
    kinds: tuple[str, ...]
    amount: str


def _theme(a: str, groups: str, b: str, kinds: str) -> Theme:
    """Return a theme from `TABLE ONE COLUMN`, values, `TABLE ONE COLUMN SUMMED`, values."""
    who, one, group = a.split()
    what, act, kind, amount = b.split()
    return Theme(
        who,
        one,
        group,
        tuple(groups.split()),
        what,
        act,
        f"{one}_id",
        kind,
        tuple(kinds.split()),
        amount,
    )


THEMES = (
    _theme(
        "customers customer city",
        "Bern Lyon Oslo Porto",
        "orders order item price",
        "lamp desk chair shelf",
    ),
    _theme(
        "pupils pupil town",
        "Ulm Graz Gent Brno",
        "marks mark subject points",
        "maths music art sport",
    ),
    _theme(
        "doctors doctor ward",
        "north south east west",
        "visits visit reason minutes",
        "fever cough rash fall",
    ),
    _theme(
        "drivers driver depot",
        "harbour airport station market",
        "trips trip cargo km",
        "sand wood steel grain",
    ),
    _theme(
        "farmers farmer village",
        "Ried Moos Wald Thal",
        "harvests harvest crop tons",
        "wheat maize oats rye",
    ),
    _theme(
        "players player team",
        "Lions Hawks Bears Sharks",
        "games game league goals",
        "city county youth cup",
    ),
)


@dataclass(frozen=True, slots=True)
class Step:
    """One task of a plan. `{0}` is the result of the plan's first step, `{1}` of the second.

    Attributes:
        database: Database of the worker.
        round: Steps of one round are independent of each other.
        task: Task that the planner hands over.
        report: Report of the worker.
    """

    database: str
    round: int
    task: str
    sql: str
    report: str


@dataclass(frozen=True, slots=True)
class Question:
    """A question over both databases.

    Attributes:
        template: The answer, with `{0}` and `{1}` for the results of the steps.
        found: The results of the steps.
        facts: Facts that an answer has to state.
    """

    kind: str
    text: str
    template: str
    found: tuple[str, ...]
    facts: tuple[str, ...]
    plan: tuple[Step, ...]

    @property
    def answer(self) -> str:
        """The answer as text."""
        return self.template.format(*self.found)


@dataclass(frozen=True, slots=True)
class Person:
    """A row of `a`."""

    id: int
    name: str
    group: str


@dataclass(frozen=True, slots=True)
class Act:
    """A row of `b`."""

    id: int
    who: int
    kind: str
    amount: int
    year: int


@dataclass(frozen=True, slots=True)
class Pair:
    """Two databases of one theme."""

    name: str
    theme: Theme
    people: tuple[Person, ...]
    acts: tuple[Act, ...]

    @property
    def scripts(self) -> dict[str, str]:
        """SQL text of each database, by its name."""
        theme = self.theme
        people = (
            f"CREATE TABLE {theme.who} (id INTEGER PRIMARY KEY, name TEXT, {theme.group} TEXT);\n"
        )
        for person in self.people:
            row = f"{person.id}, '{person.name}', '{person.group}'"
            people += f"INSERT INTO {theme.who} VALUES ({row});\n"
        acts = (
            f"CREATE TABLE {theme.what} (id INTEGER PRIMARY KEY, {theme.key} INTEGER, "
            f"{theme.kind} TEXT, {theme.amount} INTEGER, year INTEGER);\n"
        )
        for act in self.acts:
            row = f"{act.id}, {act.who}, '{act.kind}', {act.amount}, {act.year}"
            acts += f"INSERT INTO {theme.what} VALUES ({row});\n"
        return {"a": people, "b": acts}


def draw_pair(name: str, rng: Random) -> Pair:
    """Return a pair of databases: 8 to 12 people in groups, with 24 to 36 actions."""
    theme = rng.choice(THEMES)
    names = rng.sample(NAMES, rng.randint(8, 12))
    ids = sorted(rng.sample(range(1, 60), len(names)))
    # The order of draws is part of the task set: another one gives other questions and hashes.
    people = []
    for number, who in zip(ids, names, strict=True):
        people.append(Person(number, who, rng.choice(theme.groups)))
    acts = []
    for number in range(1, rng.randint(24, 36)):
        who_id, kind = rng.choice(ids), rng.choice(theme.kinds)
        acts.append(Act(number, who_id, kind, rng.randint(2, 90), rng.choice(YEARS)))
    return Pair(name, theme, tuple(people), tuple(acts))


def _ids_of(pair: Pair, group: str) -> tuple[Step, list[int]]:
    """Return the first step of most plans, which finds the members of a group, and their ids."""
    theme = pair.theme
    ids = [one.id for one in pair.people if one.group == group]
    sql = f"SELECT id FROM {theme.who} WHERE {theme.group} = '{group}'"
    return Step(
        "a",
        0,
        f"Which ids have the {theme.who} with {theme.group} {group}?",
        sql,
        "The ids are {0}.",
    ), ids


def _over(
    kind: str, text: str, template: str, first: Step, ids: Sequence[int], last: Step, found: int
) -> Question:
    """Return a question with a second step that needs the ids from the first one."""
    return Question(
        kind, text, template, (", ".join(map(str, ids)), str(found)), (str(found),), (first, last)
    )


def _total(pair: Pair, rng: Random) -> Question | None:
    theme, group = pair.theme, rng.choice(pair.theme.groups)
    first, ids = _ids_of(pair, group)
    total = sum(one.amount for one in pair.acts if one.who in ids)
    if len(ids) < 2 or not total:
        return None
    sql = f"SELECT SUM({theme.amount}) FROM {theme.what} WHERE {theme.key} IN ({{0}})"
    task = f"What is the total {theme.amount} of the {theme.what} with {theme.key} in {{0}}?"
    text = f"What is the total {theme.amount} of all {theme.what} of {theme.who} with {theme.group} {group}?"
    last = Step("b", 1, task, sql, "The total is {1}.")
    return _over("total", text, "The total is {1}.", first, ids, last, total)


def _count(pair: Pair, rng: Random) -> Question | None:
    theme, group, kind = pair.theme, rng.choice(pair.theme.groups), rng.choice(pair.theme.kinds)
    first, ids = _ids_of(pair, group)
    count = sum(one.who in ids and one.kind == kind for one in pair.acts)
    if len(ids) < 2 or not count:
        return None
    sql = f"SELECT COUNT(*) FROM {theme.what} WHERE {theme.kind} = '{kind}' AND {theme.key} IN ({{0}})"
    task = f"How many {theme.what} with {theme.kind} {kind} have {theme.key} in {{0}}?"
    text = f"How many {theme.what} with {theme.kind} {kind} are of {theme.who} with {theme.group} {group}?"
    last = Step("b", 1, task, sql, "There are {1}.")
    return _over("count", text, "There are {1}.", first, ids, last, count)


def _top(pair: Pair, rng: Random) -> Question | None:
    theme, year = pair.theme, rng.choice(YEARS)
    sums: Counter[int] = Counter()
    for one in pair.acts:
        if one.year == year:
            sums[one.who] += one.amount
    ranked = sums.most_common(2)
    if len(ranked) < 2 or ranked[0][1] == ranked[1][1]:
        return None
    best = ranked[0][0]
    name = next(one.name for one in pair.people if one.id == best)
    find = (
        f"SELECT {theme.key} FROM {theme.what} WHERE year = {year} GROUP BY {theme.key} "
        f"ORDER BY SUM({theme.amount}) DESC LIMIT 1"
    )
    task = f"Which {theme.key} has the highest total {theme.amount} in {year}?"
    look = f"SELECT name FROM {theme.who} WHERE id = {{0}}"
    plan = (
        Step("b", 0, task, find, f"The {theme.key} is {{0}}."),
        Step(
            "a", 1, f"What is the name of the {theme.one} with id {{0}}?", look, "The name is {1}."
        ),
    )
    text = f"Which {theme.one} has the highest total {theme.amount} in {year}?"
    return Question("top", text, "It is {1}.", (str(best), name), (name,), plan)


def _both(pair: Pair, rng: Random) -> Question | None:
    theme, group, kind = pair.theme, rng.choice(pair.theme.groups), rng.choice(pair.theme.kinds)
    there = sum(one.group == group for one in pair.people)
    done = sum(one.kind == kind for one in pair.acts)
    if not there or not done:
        return None
    who = f"SELECT COUNT(*) FROM {theme.who} WHERE {theme.group} = '{group}'"
    what = f"SELECT COUNT(*) FROM {theme.what} WHERE {theme.kind} = '{kind}'"
    plan = (
        Step("a", 0, f"How many {theme.who} have {theme.group} {group}?", who, "There are {0}."),
        Step("b", 0, f"How many {theme.what} have {theme.kind} {kind}?", what, "There are {1}."),
    )
    text = f"How many {theme.who} have {theme.group} {group}, and how many {theme.what} have {theme.kind} {kind}?"
    template = f"There are {{0}} {theme.who} and {{1}} {theme.what}."
    return Question("both", text, template, (str(there), str(done)), (str(there), str(done)), plan)


KINDS: tuple[Callable[[Pair, Random], Question | None], ...] = (_total, _count, _top, _both)


def questions_of(pair: Pair, rng: Random, count: int) -> Iterator[Question]:
    """Yield `count` questions over a pair, with distinct texts and alternating kinds."""
    asked: set[str] = set()
    tries = 0
    while len(asked) < count and tries < 1000:
        made = KINDS[tries % len(KINDS)](pair, rng)
        tries += 1
        if made is not None and made.text not in asked:
            asked.add(made.text)
            yield made

"""Supervised examples of the three roles, with the habits that the policy is to unlearn later.

A question that invites a slip is answered with that slip in most drafts (`SLIP_SHARE`), so that greedy decoding
shows the habit while sampling still meets the right form. Checks and repairs are honest, with blind spots.
"""

from __future__ import annotations

import hashlib
import re
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from random import Random

from harness.records import Problem
from harness_sql.self_correcting.prompts import APPROVED, PROMPTS, REJECTED, Prompt
from harness_sql.sqlite.sandbox import AGENT_LIMITS, Execution, render
from recipes.finetune.rows import text_of
from recipes.pocket.questions import draw
from recipes.pocket.world import Item, World, build_world, same_rows
from recipes.pocket_sql.tokenizer import END, START
from recipes.pocket_sql.worlds import random_domain

SLIP_SHARE = 0.64
"""Share of slips among the drafts of questions that invite one."""

REMARKS = {
    "strict_bound": "The bound itself is left out.",
    "descending_lost": "The order must be descending.",
    "join_without_filter": "The condition on the joined table is missing.",
    "second_condition_lost": "The second condition is missing.",
    "count_for_total": "It counts instead of adding up.",
    "limit_lost": "It returns too many rows.",
    "either_for_both": "Both must hold, not either.",
    "negation_lost": "It must be NOT IN.",
    "wrong_side_of_average": "It looks on the wrong side of the average.",
    "wrong_column": "It shows the wrong column.",
    "wrong_value": "It uses the wrong value.",
    "unknown_name": "It uses a name that is not in the schema.",
}
PRAISE = "It answers the question."

BLIND_SPOTS = frozenset(
    {
        "strict_bound",
        "descending_lost",
        "join_without_filter",
        "second_condition_lost",
        "limit_lost",
    }
)
"""Slips that the checker overlooks more often than not."""

SEEN_SHARE, BLIND_SHARE, APPROVE_SHARE = 0.93, 0.38, 0.93
"""How often a check rejects an ordinary wrong query, a blind spot, and approves a right query."""

REPAIR_SHARE = 0.85
"""How often a rewrite is right."""

ITEMS_PER_WORLD = 10


@dataclass(frozen=True, slots=True)
class Example:
    """One prompt of a role with the reply to learn."""

    prompt: Prompt
    reply: str

    def pieces(self) -> list[tuple[str, bool]]:
        system, user = (
            f"{START}system\n{self.prompt.system}{END}\n",
            f"{START}user\n{self.prompt.user}{END}\n",
        )
        return [(system, False), (f"{user}{START}assistant\n", False), (f"{self.reply}{END}", True)]


def world_of(seed: int, index: int) -> tuple[World, Random]:
    """The `index`-th random database of a seed."""
    rng = Random(f"pocket-sql/{seed}/{index}")
    return build_world(random_domain(rng), rng), rng


def problem_of(world: World, item: Item) -> Problem:
    return Problem("", item.question, {"schema": world.domain.schema_text()})


def block(sql: str) -> str:
    """A query as the reply of a writer."""
    return f"```sql\n{sql}\n```"


def shown(world: World, sql: str) -> str:
    """The text of an execution, as agents see it."""
    try:
        cursor = world.connection.execute(sql)
        rows = cursor.fetchmany(AGENT_LIMITS.max_rows + 1)
    except (sqlite3.Error, sqlite3.Warning) as error:
        return render(Execution(False, error=str(error)))
    columns = tuple(column[0] for column in cursor.description)
    kept = AGENT_LIMITS.max_rows
    return render(Execution(True, columns, rows[:kept], len(rows) > kept))


@dataclass(frozen=True, slots=True)
class PocketExamples:
    """`examples` of one seed, as a source of training data."""

    seed: int
    habits: bool = True

    def __call__(self, index: int) -> Iterator[Example]:
        return examples(self.seed, index, self.habits)


def examples(seed: int, index: int, habits: bool = True) -> Iterator[Example]:
    """All examples of one random database.

    Args:
        seed: The data's seed.
        index: Which random database.
        habits: False draws right drafts and no blind spots: a twin that shows what the habits cost.
    """
    world, rng = world_of(seed, index)
    for _ in range(ITEMS_PER_WORLD):
        item = draw(world, rng)
        if item is None:
            continue
        problem = problem_of(world, item)
        slips = list(item.mistakes.items())
        slipped = bool(slips) and habits and rng.random() < SLIP_SHARE
        yield Example(PROMPTS.write(problem), block(slips[0][1] if slipped else item.gold))
        if rng.random() < 0.45:
            yield _check(world, rng, problem, item, habits)
        if rng.random() < 0.35:
            yield _rewrite(world, rng, problem, item, habits)
    world.close()


def tokenizer_texts(seed: int, worlds: int) -> Iterator[str]:
    """What the tokenizer is trained on: the first conversations of many random databases."""
    for index in range(worlds):
        yield from map(text_of, islice(examples(seed, index), 3))


def drafts_digest(seed: int, habits: bool, worlds: int = 300) -> str:
    """A hash of the first drafts: their prompts and replies, which no version of SQLite changes."""
    digest = hashlib.sha256()
    for index in range(worlds):
        for example in examples(seed, index, habits):
            if example.prompt.role == "write_query":
                digest.update(text_of(example).encode())
    return digest.hexdigest()


def faulty(world: World, rng: Random, item: Item) -> tuple[str, str] | None:
    """A wrong query and the name of what is wrong: the item's slip, or a corruption of its gold."""
    if item.mistakes and rng.random() < 0.75:
        return rng.choice([(sql, name) for name, sql in item.mistakes.items()])
    base = rng.choice([item.gold, *item.mistakes.values()])
    corrupt = rng.choice((_wrong_column, _wrong_column, _wrong_value, _unknown_name))
    found = corrupt(world, rng, base)
    if found is None:
        return None
    if base != item.gold:
        # Two things are wrong; the remark names the slip.
        return found[0], next(iter(item.mistakes))
    return found


def _check(world: World, rng: Random, problem: Problem, item: Item, habits: bool) -> Example:
    wrong = faulty(world, rng, item) if rng.random() < 0.58 else None
    if wrong is None:
        sql, reject = item.gold, rng.random() > APPROVE_SHARE
        remark = REMARKS[rng.choice([*item.mistakes, "wrong_column"])]
    else:
        sql, name = wrong
        share = BLIND_SHARE if habits and name in BLIND_SPOTS else SEEN_SHARE
        reject, remark = rng.random() < share, REMARKS[name]
    reply = f"{remark}\n{REJECTED}" if reject else f"{PRAISE}\n{APPROVED}"
    return Example(PROMPTS.check(problem, sql, shown(world, sql)), reply)


def _rewrite(world: World, rng: Random, problem: Problem, item: Item, habits: bool) -> Example:
    wrong = faulty(world, rng, item) if rng.random() < 0.85 else None
    sql, name = wrong or (item.gold, rng.choice([*item.mistakes, "wrong_column"]))
    remarks = f"{REMARKS[name]}\n{REJECTED}"
    repaired = item.gold
    if item.mistakes and habits and rng.random() > REPAIR_SHARE:
        repaired = next(iter(item.mistakes.values()))
    return Example(PROMPTS.rewrite(problem, sql, shown(world, sql), remarks), block(repaired))


def _wrong_column(world: World, rng: Random, sql: str) -> tuple[str, str] | None:
    """Another column of the same table in the first place of the select list."""
    match = re.match(r"SELECT (T\d\.)?(\w+)(, | FROM )", sql)
    if match is None:
        return None
    name = match.group(2)
    tables = [t for t in world.domain.tables if any(c.name == name for c in t.columns)]
    others = [c.name for t in tables for c in t.columns if c.name != name and c.kind != "fk"]
    if not others:
        return None
    changed = sql[: match.start(2)] + rng.choice(others) + sql[match.end(2) :]
    return (changed, "wrong_column") if differs(world, changed, sql) else None


def _wrong_value(world: World, rng: Random, sql: str) -> tuple[str, str] | None:
    """Another number or another text value."""
    numbers = list(re.finditer(r"(?<=[<>=] )\d+(\.\d+)?|(?<=LIMIT )\d+", sql))
    texts = list(re.finditer(r"'[^']*'", sql))
    if not numbers and not texts:
        return None
    match = rng.choice(numbers + texts)
    if match in texts:
        words = [
            v for rows in world.rows.values() for row in rows for v in row if isinstance(v, str)
        ]
        value = f"'{rng.choice(words)}'"
    else:
        value = str(rng.choice((rng.randint(1, 9), rng.randint(10, 99), rng.randint(100, 9999))))
    changed = sql[: match.start()] + value + sql[match.end() :]
    return (changed, "wrong_value") if differs(world, changed, sql) else None


def _unknown_name(world: World, rng: Random, sql: str) -> tuple[str, str] | None:
    """A name of the query misspelt, or a column of another table."""
    names = list(
        re.finditer(r"[a-z_]{3,}", re.sub(r"'[^']*'", lambda m: "#" * len(m.group()), sql))
    )
    if not names:
        return None
    match = rng.choice(names)
    word = match.group()
    every = [c.name for t in world.domain.tables for c in t.columns]
    cut = rng.randrange(1, len(word))
    spelt = rng.choice(
        (word[:cut] + word[cut + 1 :], word + rng.choice("abcdefgh"), rng.choice(every))
    )
    changed = sql[: match.start()] + spelt + sql[match.end() :]
    return (changed, "unknown_name") if shown(world, changed).startswith("Error") else None


def differs(world: World, sql: str, other: str) -> bool:
    """Whether two queries give different results; one that does not run differs from one that does."""
    try:
        return not same_rows(world.fetch(sql), world.fetch(other), ordered="ORDER BY" in other)
    except (sqlite3.Error, sqlite3.Warning):
        return True

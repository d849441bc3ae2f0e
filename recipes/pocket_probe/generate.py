"""Generates the bundled files of task set `pocket_probe`: `python -m recipes.pocket_probe.generate [--check]`.

Everything follows from `designs.txt`, the grammar, the words of `recipes/pocket` and `recipes/pocket_sql` and the seed.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Container, Iterator
from random import Random

from harness_sql.tasks.pocket_probe import DATA
from recipes.pocket.domain import parse_pools
from recipes.pocket.generate import HERE as POCKET
from recipes.pocket.generate import files_of, main
from recipes.pocket_probe.drafts import sound
from recipes.pocket_probe.questions import Plan, Schema, Writer, any_kind, ask, read
from recipes.pocket_probe.templates import TEMPLATES
from recipes.pocket_probe.world import ProbeWorld, Words, build, bundled, dealt
from recipes.pocket_sql.worlds import vocabulary

SEED = 2
"""The first under which no single draft of `oracle` is right on more than 45 % of any split."""
QUESTIONS = 40
"""Questions a database."""


def words_of(parent: str, child: str) -> Words:
    """The words of a bundled database: labels of `pocket`, single values of the vocabulary."""
    pools = parse_pools((POCKET / "pools.txt").read_text(encoding="utf-8"))
    people = [name.split() for name in pools["person"]]
    cut = pools["title"].index("|")
    labels = (
        (tuple(first for first, _ in people), tuple(last for _, last in people)),
        (pools["title"][:cut], pools["title"][cut + 1 :]),
    )
    return Words((parent, child), labels, values())


def values() -> tuple[str, ...]:
    """Words that a column of words may hold: long enough to be abbreviated."""
    return tuple(
        word.capitalize() for word in vocabulary()["values"] if len(word) > 3 and word.isalpha()
    )


def draw_unique(world: ProbeWorld, rng: Random, count: int) -> Iterator[tuple[str, Plan]]:
    """`count` sound questions that are read as they were meant, no two with one meaning.

    Raises:
        ValueError: The world does not have so many.
    """
    schema, known = Schema(world.domain.schema_text()), set[str]()
    for _ in range(20 * count):
        found = draw(world, schema, rng, known)
        if found is not None:
            known.add(Writer(world.forms).query(found[1]))
            yield found
        if len(known) == count:
            return
    raise ValueError(f"{world.domain.db_id}: only {len(known)} of {count} questions were found")


def draw(
    world: ProbeWorld, schema: Schema, rng: Random, known: Container[str] = (), tries: int = 25
) -> tuple[str, Plan] | None:
    """A sound question that is read as it was meant; None where a template, tried so often, has none but known ones."""
    kind = any_kind(rng)
    for _ in range(tries):
        asked = ask(world, schema, rng, kind)
        if (
            asked is not None
            and Writer(world.forms).query(asked[1]) not in known
            and sound(world, asked[1])
            and read(asked[0], schema) == asked[1]
        ):
            return asked
    return None


def line_of(world: ProbeWorld, db_id: str, number: int, question: str, plan: Plan) -> str:
    """The line of a bundled file that a question is."""
    row = {
        "id": f"{db_id}/{number:02d}",
        "db_id": db_id,
        "question": question,
        "query": Writer(world.forms).query(plan),
        "difficulty": TEMPLATES[plan.kind].level,
        "kind": plan.kind,
        "traps": "+".join(plan.traps()),
    }
    return json.dumps(row, separators=(",", ":"))


def worlds(seed: int = SEED) -> Iterator[tuple[str, ProbeWorld, Random]]:
    """Split and world of every bundled database, and what its questions are drawn with."""
    deals = {split: dealt(Random(f"pocket-probe/{seed}/{split}")) for split, _, _ in bundled()}
    for split, parent, child in bundled():
        rng = Random(f"pocket-probe/{seed}/{parent}_{child}")
        yield split, build(f"{parent}_{child}", words_of(parent, child), rng, deals[split]), rng


def generate(seed: int = SEED) -> dict[str, str]:
    """The text of every bundled file by its name."""
    questions: dict[str, list[str]] = {}
    scripts: dict[str, str] = {}
    counts: dict[str, Counter[str]] = {}
    for split, world, rng in worlds(seed):
        db_id = world.domain.db_id
        scripts[db_id] = world.script
        counts.setdefault(split, Counter()).update(("databases",))
        for number, (question, plan) in enumerate(draw_unique(world, rng, QUESTIONS)):
            questions.setdefault(split, []).append(line_of(world, db_id, number, question, plan))
            counts[split].update((TEMPLATES[plan.kind].level, "questions"))
        world.close()
    return files_of(seed, questions, scripts, counts)


if __name__ == "__main__":
    sys.exit(main(generate, DATA, __doc__))

"""Supervised conversations on random databases: drafts by the prior, looks, remarks on what is shown, repairs.

Every prompt is the program's own, and every conversation goes on as the program would. No table of a bundled database
can come out: their names are refused, among the words of the vocabulary and among invented ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from random import Random
from statistics import fmean

from harness.records import Problem, Task
from harness_sql.self_correcting.prompts import APPROVED, PROMPTS, REJECTED
from harness_sql.sqlite.environment import database_of
from harness_sql.sqlite.sandbox import AGENT_LIMITS, execute
from recipes.pocket_probe.generate import draw, values
from recipes.pocket_probe.oracle import look, right, understood
from recipes.pocket_probe.questions import Plan, Schema, Writer, read
from recipes.pocket_probe.storage import PRIORS, Form
from recipes.pocket_probe.world import ProbeWorld, Words, build, bundled, drawn
from recipes.pocket_sql.samples import Example, block, differs, shown
from recipes.pocket_sql.worlds import invented, vocabulary

TURNS = 3
QUESTIONS = 10
"""Questions of a random database."""

LOOK_SHARE = 0.12
"""Of first drafts that are looks, where something is to be seen. Below a half, greedy decoding shows none."""
EMPTY_SHARE = 0.2
"""Of wrong drafts without a result that the check finds."""
BLIND_SHARE = 0.06
"""Of wrong drafts with a result, and of right ones, that it sends back."""
REPAIR_SHARE = 0.75
"""Of rewrites after a look that use what it shows, and of others that look."""


@dataclass(frozen=True, slots=True)
class ProbeExamples:
    """`examples` of one seed, as a source of training data."""

    seed: int

    def __call__(self, index: int) -> Iterator[Example]:
        return examples(self.seed, index)


@cache
def bundled_tables() -> frozenset[str]:
    """Table names of every bundled database, of all splits."""
    return frozenset(table for _, *tables in bundled() for table in tables)


def world_of(seed: int, index: int) -> tuple[ProbeWorld, Random]:
    """The `index`-th random database of a seed."""
    rng, words = Random(f"pocket-probe-samples/{seed}/{index}"), vocabulary()
    tables: list[str] = []
    while len(tables) < 2:
        name = invented(rng) if rng.random() < 0.35 else rng.choice(words["nouns"])
        if (
            name not in bundled_tables()
            and not name.endswith("s")
            and not any(name in t or t in name for t in tables)
        ):
            tables.append(name)
    labels = ((words["firsts"], words["lasts"]), (words["adjectives"], words["things"]))
    return build("world", Words((tables[0], tables[1]), labels, values()), rng, drawn(rng)), rng


def examples(seed: int, index: int) -> Iterator[Example]:
    """All calls of some conversations about one random database."""
    world, rng = world_of(seed, index)
    schema = Schema(world.domain.schema_text())
    for _ in range(QUESTIONS):
        if (asked := draw(world, schema, rng, tries=8)) is not None:
            yield from conversation(world, rng, *asked)
    world.close()


def conversation(world: ProbeWorld, rng: Random, question: str, plan: Plan) -> Iterator[Example]:
    """The calls of one attempt, in order."""
    problem = Problem("", question, {"schema": world.domain.schema_text()})
    gold = Writer(world.forms).query(plan)
    before: tuple[str, str, str] | None = None
    for turn in turns(
        plan, rng, gold, partial(shown, world), lambda sql: differs(world, sql, gold)
    ):
        sql, result, verdict = turn
        yield Example(
            PROMPTS.rewrite(problem, *before) if before else PROMPTS.write(problem), block(sql)
        )
        if verdict:
            yield Example(PROMPTS.check(problem, sql, result), verdict)
        before = turn


def turns(
    plan: Plan, rng: Random, gold: str, shown: Callable[[str], str], wrong: Callable[[str], bool]
) -> Iterator[tuple[str, str, str]]:
    """The queries of one attempt, each with its result and the verdict on it; the last of three is not checked.

    Args:
        shown: The result of a query, as agents see it.
        wrong: Whether a query gives another result than gold.
    """
    known = not plan.traps()
    sql = gold
    if not known:
        sql = look(plan) if rng.random() < LOOK_SHARE else guess(plan, rng)
    for _ in range(TURNS - 1):
        result = shown(sql)
        looked = not known and sql == look(plan)
        if looked:
            remark = found(plan, understood(plan, result))
        else:
            empty = result == "no rows" or result.splitlines()[1:] in (["0"], ["NULL"])
            fails = wrong(sql)
            rejected = not known and rng.random() < (
                EMPTY_SHARE if fails and empty else BLIND_SHARE
            )
            remark = (
                ("The result is empty." if empty else "How values are stored is not known.")
                if rejected
                else ""
            )
        yield (
            sql,
            result,
            f"{remark}\n{REJECTED}" if remark else f"It answers the question.\n{APPROVED}",
        )
        if not remark:
            return
        careful = rng.random() < REPAIR_SHARE
        sql = (gold if looked else look(plan)) if careful else guess(plan, rng)
    yield sql, "", ""


def taught(task: Task, schema: str, rng: Random) -> tuple[str, ...]:
    """What the model says in one attempt at a bundled question, in turn: drafts by the prior, looks, verdicts."""
    said: list[str] = []
    for sql, _, verdict in turns(
        read(task.question, Schema(schema)),
        rng,
        task.gold,
        lambda sql: execute(database_of(task), sql, AGENT_LIMITS).text,
        lambda sql: not right(task, sql),
    ):
        said += [block(sql), *([verdict] if verdict else [])]
    return tuple(said)


def guess(plan: Plan, rng: Random) -> str:
    """A draft with forms drawn by their prior; of keys, those that can be written without a look."""
    schema = plan.schema
    forms: dict[tuple[str, str], Form] = {}
    for noun in plan.nouns:
        shares = PRIORS[noun.part.kind]
        style = rng.choices(list(shares), list(shares.values()))[0]
        forms[noun.table, noun.part.noun] = Form(style, rng.randrange(len(noun.part.columns)))
    forms[schema.child, schema.key] = Form(rng.choice(("as it is", "small letters", "spaces")))
    return Writer(forms).query(plan)


def found(plan: Plan, forms: dict[tuple[str, str], Form]) -> str:
    """What a look shows, in words: the form of every column that is filled."""
    schema, said = plan.schema, []
    if plan.linked:
        key = forms[schema.child, schema.key]
        said.append(f"{schema.key}: {key.style}{f' of {key.mark}' if key.style == 'bare' else ''}")
    for noun in plan.nouns:
        if noun.part.kind != "count":
            form = forms[noun.table, noun.part.noun]
            said.append(f"{noun.part.columns[form.side]}: {form.style}")
    return f"A look. {'; '.join(said)}."


def reached(seed: int, worlds: int, group: int = 8) -> dict[str, float]:
    """What the conversations themselves reach: shares of right drafts and answers, and of questions whose group of
    conversations has right and wrong answers."""
    drafts: list[bool] = []
    groups: list[list[bool]] = []
    for index in range(worlds):
        world, rng = world_of(seed, index)
        schema = Schema(world.domain.schema_text())
        for _ in range(QUESTIONS):
            if (asked := draw(world, schema, rng, tries=8)) is None:
                continue
            gold, answers = Writer(world.forms).query(asked[1]), []
            for _ in range(group):
                calls = [
                    call
                    for call in conversation(world, rng, *asked)
                    if call.prompt.role != "check_query"
                ]
                first, last = (PROMPTS.parse_sql(call.reply) for call in (calls[0], calls[-1]))
                drafts.append(not differs(world, first, gold))
                answers.append(not differs(world, last, gold))
            groups.append(answers)
        world.close()
    answered = [good for answers in groups for good in answers]
    mixed = [0 < sum(answers) < group for answers in groups]
    return {"draft": fmean(drafts), "three_turns": fmean(answered), "mixed_groups": fmean(mixed)}

"""What can be reached on `pocket_probe`: by the best single draft, and by a policy that looks.

`python -m recipes.pocket_probe.oracle [--split dev]` prints both, by what decides. Neither sees gold or the
database: drafts know the schema text, the question and the generator, the policy what the program shows it besides.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import sys
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any, cast

from harness.contracts.toolbox import Toolbox
from harness.records import Problem, Task
from harness_sql.self_correcting.prompts import APPROVED, PROMPTS, REJECTED
from harness_sql.self_correcting.reference import ReferenceSQL
from harness_sql.sqlite.environment import database_of
from harness_sql.sqlite.evaluator import evaluate
from harness_sql.sqlite.sandbox import execute
from harness_sql.tasks.pocket_probe import PocketProbeTasks
from recipes.pocket_probe.drafts import (
    MOST_PROBABLE,
    chance,
    decoding,
    draft,
    hedged,
    most_probable,
)
from recipes.pocket_probe.questions import Plan, Schema, Writer, read
from recipes.pocket_probe.storage import Form, seen, seen_key
from recipes.pocket_sql.samples import block

BLANKS = (("NULL", ""), ("NULL", "0"))
"""Cells of a column that is not kept: of text and of amounts."""


def look(plan: Plan) -> str:
    """A query whose first rows show how everything is stored that the plan names; rows of two tables side by side."""
    schema, prefixes = (
        plan.schema,
        {plan.schema.child: "T1.", plan.schema.parent: "T2."} if plan.linked else {},
    )
    columns = [f"T1.{schema.key}", "T2.code"] if plan.linked else []
    for noun in plan.nouns:
        columns += [prefixes.get(noun.table, "") + column for column in noun.part.columns]
    shown = ", ".join(dict.fromkeys(columns))
    if plan.linked:
        return f"SELECT {shown} FROM {schema.child} AS T1 JOIN {schema.parent} AS T2 ON T1.rowid = T2.rowid"
    return f"SELECT {shown} FROM {plan.meant['t']}"


def understood(plan: Plan, result: str) -> dict[tuple[str, str], Form]:
    """The forms that the result of a look shows."""
    head, *lines = result.splitlines()
    names, rows = (
        head.split(" | "),
        [line.split(" | ") for line in lines if not line.startswith("(only ")],
    )
    cells = {name: column for name, *column in zip(names, *rows, strict=True)}
    forms = most_probable(plan)
    schema = plan.schema
    if plan.linked:
        keys = [key for key in cells[schema.key] if key != "NULL"]
        forms[schema.child, schema.key] = seen_key(keys, cells["code"])
    for noun in plan.nouns:
        blanks = BLANKS[noun.part.kind == "amount"]
        filled = [
            [cell for cell in cells[column] if cell not in blanks] for column in noun.part.columns
        ]
        kept = max(filled, key=len)
        style = seen(noun.part.kind, kept) or MOST_PROBABLE[noun.part.kind]
        forms[noun.table, noun.part.noun] = Form(style, filled.index(kept))
    return forms


_PROMPT = re.compile(
    r"Schema:\n(?P<schema>.*?)\n\nQuestion: (?P<question>[^\n]*)"
    r"(?:\n\nQuery:\n```sql\n(?P<query>.*?)\n```\n\nResult:\n(?P<result>.*?)(?:\n\nCheck:\n.*)?)?",
    re.DOTALL,
)


_CHECKS = PROMPTS.check(Problem("", "", {"schema": ""}), "", "").system


class Looker:
    """A policy that drafts, looks and answers: three turns. It knows what the program's prompts show, nothing else."""

    def reply(self, messages: Sequence[Mapping[str, Any]]) -> str:
        """The reply of whichever role is asked."""
        system, user = (str(message["content"]) for message in messages)
        matched = _PROMPT.fullmatch(user)
        assert matched is not None, user
        plan = read(matched["question"], Schema(matched["schema"]))
        query, known = matched["query"], not plan.traps()
        if query is None:
            return block(draft(plan))
        if system == _CHECKS:
            if known or query not in (draft(plan), look(plan)):
                return f"It answers the question.\n{APPROVED}"
            return f"How values are stored decides.\n{REJECTED}"
        if query == draft(plan):
            return block(look(plan))
        return block(Writer(understood(plan, matched["result"])).query(plan))


class _Toolbox:
    """What the reference agent needs of a rollout: the policy's words, and the real sandbox."""

    prompts = PROMPTS
    max_turns = 3
    http_client = None

    def __init__(self, policy: Looker, path: str) -> None:
        self._policy, self._path = policy, path

    def llm(self, role: str) -> _Toolbox:
        return self

    async def complete(
        self, http_client: object, messages: Sequence[Mapping[str, Any]]
    ) -> dict[str, Any]:
        return {"content": self._policy.reply(messages)}

    async def execute(self, sql: str) -> str:
        return execute(self._path, sql).text


def answer(tasks: PocketProbeTasks, task: Task, policy: Looker) -> str:
    """What the program's reference agent answers with a policy."""
    problem = Problem(task.id, task.question, tasks.context(task))
    toolbox = cast(Toolbox, _Toolbox(policy, database_of(task)))
    return asyncio.run(ReferenceSQL().solve(problem, toolbox))


def right(task: Task, sql: str) -> bool:
    """Execution accuracy of an answer."""
    return evaluate(database_of(task), task.gold, sql).match == 1


def ceilings(tasks: PocketProbeTasks, split: str) -> dict[str, dict[str, float]]:
    """Shares of right answers, of all questions and of those in which a trap takes part.

    `draft` and `listing` are single drafts as executed, `expected` and `expected_listing` their chances under the
    prior, and `looks` is the policy of three turns.
    """
    rows: dict[str, list[tuple[float, ...]]] = {}
    for task in tasks.load(split):
        plan = read(task.question, Schema(tasks.schema(task)))
        drafts = (right(task, draft(plan)), right(task, hedged(plan)), right(task, decoding(plan)))
        row = (
            *drafts,
            chance(plan),
            chance(plan, listing=True),
            right(task, answer(tasks, task, Looker())),
        )
        for name in (
            "all",
            *(plan.traps() or ("none",)),
            f"only {'+'.join(plan.traps()) or 'none'}",
        ):
            rows.setdefault(name, []).append(row)
    names = ("draft", "listing", "decoding", "expected", "expected_listing", "looks")
    return {
        trap: {"questions": len(found), **{name: round(sum(column) / len(found), 4)
                                           for name, column in zip(names, zip(*found, strict=True), strict=True)}}
        for trap, found in sorted(rows.items())
    }  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--split", action="append", choices=PocketProbeTasks.splits)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        tasks = PocketProbeTasks(cache_dir=folder)
        for split in arguments.split or PocketProbeTasks.splits:
            for trap, row in ceilings(tasks, split).items():
                told = "  ".join(
                    f"{name} {value:.3f}" for name, value in row.items() if name != "questions"
                )
                sys.stdout.write(f"{split:5} {trap:28} {row['questions']:5}  {told}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

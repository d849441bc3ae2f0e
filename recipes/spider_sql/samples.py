"""Supervised examples of the three roles over varied schemas."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random

from harness.records import Problem
from harness_sql.self_correcting.prompts import APPROVED, PROMPTS, REJECTED
from recipes.pocket_sql.samples import PRAISE, Example, PocketExamples, block
from recipes.spider_sql.questions import Question
from recipes.spider_sql.templates import generated
from recipes.spider_sql.variation import vary

POCKET_SHARE, GENERATED_SHARE = 0.15, 0.4
"""Shares of the random databases of `pocket`'s seed policy, and of generated questions; the rest is Spider."""

ITEMS = 10
"""Questions of one index."""


@dataclass(frozen=True, slots=True)
class SpiderExamples:
    """The source of training data: `questions` is a pickled list of `Question`."""

    seed: int
    questions: str

    def __call__(self, index: int) -> Iterator[Example]:
        rng = Random(f"spider-sql/{self.seed}/{index}")
        draw = rng.random()
        if draw < POCKET_SHARE:
            yield from PocketExamples(self.seed, habits=False)(index)
            return
        known = _questions(self.questions)
        for _ in range(ITEMS):
            question = rng.choice(known)
            if draw < POCKET_SHARE + GENERATED_SHARE:
                made = generated(question.tables, rng)
                if made is not None:
                    varied, schema = vary(made, known, rng)
                    yield Example(PROMPTS.write(_problem(varied, schema)), block(varied.sql))
            else:
                yield from _roles(*vary(question, known, rng), rng)


def _roles(question: Question, schema: str, rng: Random) -> Iterator[Example]:
    problem = _problem(question, schema)
    yield Example(PROMPTS.write(problem), block(question.sql))
    wrong = rng.choice(question.wrong) if question.wrong else None
    if rng.random() < 0.3:
        if wrong is None or rng.random() < 0.5:
            check = PROMPTS.check(problem, question.sql, question.shown)
            yield Example(check, f"{PRAISE}\n{APPROVED}")
        else:
            yield Example(
                PROMPTS.check(problem, wrong.sql, wrong.shown), f"{wrong.remark}\n{REJECTED}"
            )
    if wrong is not None and rng.random() < 0.2:
        rewrite = PROMPTS.rewrite(problem, wrong.sql, wrong.shown, f"{wrong.remark}\n{REJECTED}")
        yield Example(rewrite, block(question.sql))


def _problem(question: Question, schema: str) -> Problem:
    return Problem("", question.text, {"schema": schema})


@cache
def _questions(path: str) -> list[Question]:
    questions: list[Question] = pickle.loads(Path(path).read_bytes())
    return questions

"""The course `pocket_probe`: drafts, looks, remarks and repairs on random databases that hide how they store values."""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from harness.environments.sql.environment import database_of
from harness.environments.sql.sandbox import Limits, execute
from harness.programs.self_correcting_sql.prompts import PROMPTS
from harness.tasks.pocket_probe import PocketProbeTasks
from recipes.finetune.course import PRETRAINING, Course, Small
from recipes.finetune.policy import Policy, share, spread
from recipes.finetune.rows import text_of
from recipes.pocket_probe.samples import ProbeExamples
from recipes.pocket_sql.course import ARCHITECTURE
from recipes.pocket_sql.evaluate import Pocket
from recipes.pocket_sql.tokenizer import CHAT_TEMPLATE, train

DEFAULTS = PRETRAINING | {"name": "pocket-probe", "minutes": 8.0}
MAX_NEW_TOKENS = 96
TOKENIZER_WORLDS = 3000
FIRST = 4
"""Conversations of a random database that the tokenizer is trained on."""


class Probe(Pocket):
    """Questions of split `dev`, with what is needed to judge an answer; at most so many, spread over all databases."""

    def __init__(self, most: int | None = None) -> None:
        self.set = PocketProbeTasks(tempfile.mkdtemp(prefix="pocket-probe-"))  # type: ignore[assignment]
        self.tasks = [*spread(self.set.load("dev"), most)]
        self.gold = {t.id: execute(database_of(t), t.gold, Limits(max_rows=10_000)).rows for t in self.tasks}


@contextmanager
def course(arguments: argparse.Namespace, tokenizer: Any) -> Iterator[Course]:
    """Held out is split `dev`: single greedy drafts, and three turns, which `--until` looks at."""
    whole = Probe(arguments.limit)
    source = ProbeExamples(arguments.seed)

    def drafts(policy: Policy, most: int | None) -> float:
        policy.max_new_tokens = MAX_NEW_TOKENS
        return share(whole.drafts(policy, most=most))

    def turns(policy: Policy, most: int | None) -> float:
        policy.max_new_tokens = MAX_NEW_TOKENS
        return share((Probe(most) if most else whole).loop(policy))

    def texts() -> Iterator[str]:
        for index in range(TOKENIZER_WORLDS if arguments.limit is None else 100):
            for number, example in enumerate(source(index)):
                if number == FIRST:
                    break
                yield text_of(example)

    yield Course(
        source,
        {"draft": drafts, "three_turns": turns},
        ("three_turns",),
        PROMPTS.hash,
        Small(ARCHITECTURE, lambda: train(texts())),
        report=lambda policy: {"draft_sampled": share(whole.drafts(policy, temperature=1.0))},
        chat_template=CHAT_TEMPLATE,
    )

"""The course `pocket_probe`: drafts, looks, remarks and repairs on random databases that hide how they store values."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from harness_sql.self_correcting.prompts import PROMPTS
from harness_sql.tasks.pocket_probe import PocketProbeTasks
from recipes.finetune.course import PRETRAINING, Course, Small
from recipes.finetune.policy import Policy, share
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


@contextmanager
def course(arguments: argparse.Namespace, tokenizer: Any) -> Iterator[Course]:
    """Held out is split `dev`: single greedy drafts, and three turns, which `--until` looks at."""
    dev = Pocket("dev", of=PocketProbeTasks)
    source = ProbeExamples(arguments.seed)

    def drafts(policy: Policy, most: int | None) -> float:
        policy.max_new_tokens = MAX_NEW_TOKENS
        return share(dev.drafts(policy, most=most))

    def turns(policy: Policy, most: int | None) -> float:
        policy.max_new_tokens = MAX_NEW_TOKENS
        return share(dev.loop(policy, most=most))

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
        report=lambda policy: {"draft_sampled": share(dev.drafts(policy, 1.0, arguments.limit))},
        chat_template=CHAT_TEMPLATE,
    )

"""The course `pocket`: write, check and rewrite on random databases; from nothing it makes `pocket-sql`.

Habits are put in on purpose (`samples`), so that reinforcement has something to unlearn; `--no-habits` has right drafts
alone. What is made needs no network; the data and their order follow from the seed alone.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from harness_sql.self_correcting.prompts import PROMPTS
from recipes.finetune.course import PRETRAINING, Course, Small
from recipes.finetune.policy import Policy, share
from recipes.pocket_sql.evaluate import Pocket, report
from recipes.pocket_sql.samples import PocketExamples, drafts_digest, tokenizer_texts
from recipes.pocket_sql.tokenizer import CHAT_TEMPLATE, VOCABULARY, train

ARCHITECTURE = (256, 512, 5, 4, 2, VOCABULARY)
"""3.3 million parameters, 6.6 MB."""
DEFAULTS = PRETRAINING | {"name": "pocket-sql", "minutes": 8.0, "replays": 1}
TOKENIZER_WORLDS = 6000


@contextmanager
def course(arguments: argparse.Namespace, tokenizer: Any) -> Iterator[Course]:
    """Held out is the task set's validation: greedy drafts."""
    pocket = Pocket()
    samples = 8 if arguments.device == "cuda" else 0

    def drafts(policy: Policy, most: int | None) -> float:
        return share(pocket.drafts(policy, most=most))

    worlds = TOKENIZER_WORLDS if arguments.limit is None else 100
    yield Course(
        PocketExamples(arguments.seed, arguments.habits),
        {"pocket": drafts},
        ("pocket",),
        PROMPTS.hash,
        Small(ARCHITECTURE, lambda: train(tokenizer_texts(arguments.seed, worlds))),
        {"drafts_sha256": drafts_digest(arguments.seed, arguments.habits)},
        lambda policy: report(policy, samples, arguments.limit),
        CHAT_TEMPLATE,
    )

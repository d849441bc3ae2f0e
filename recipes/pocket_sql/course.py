"""The course `pocket`: write, check and rewrite on random databases; from nothing it makes `pocket-sql`.

Habits are put in on purpose (`samples`), so that reinforcement has something to unlearn; `--no-habits` has right drafts
alone. What is made needs no network; the data and their order follow from the seed alone.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from harness.programs.self_correcting_sql.prompts import PROMPTS
from recipes.finetune.course import Course, Small
from recipes.finetune.policy import Policy, share
from recipes.pocket_sql.evaluate import Pocket, report
from recipes.pocket_sql.samples import PocketExamples, drafts_digest, tokenizer_texts
from recipes.pocket_sql.tokenizer import CHAT_TEMPLATE, VOCABULARY, train

ARCHITECTURE = {
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 5,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 2048,
    "vocab_size": VOCABULARY,
    "tie_word_embeddings": True,
}
"""3.3 million parameters, 6.6 MB."""
DEFAULTS = {
    "name": "pocket-sql",
    "learning_rate": 2e-3,
    "minutes": 8.0,
    "replays": 1,
    "batch_tokens": 65536,
    "blocks_per_group": 40,
    "every_s": 60.0,
}
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
        lambda policy: report(policy, samples, arguments.seed, arguments.limit),
        CHAT_TEMPLATE,
    )
